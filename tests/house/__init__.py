"""Tests of the house itself: its words, and which tests belong to a change."""
