"""What an iterator changes is read off its code, also where a variable has no value yet."""

from malleable.python_source.effects import effect_of


def test_a_function_whose_variable_has_no_value_yet_is_read():
    log = []

    def kept(t):
        log.append(t)
        return t + later

    assert effect_of(map(kept, [1])) == "calls `append`"
    later = 1
    assert list(map(kept, [1])) == [2] and later
