"""The whole idea in six files: stage, marker, frame, interpret, higher, live. Read them so."""
