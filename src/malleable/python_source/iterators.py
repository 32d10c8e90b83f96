"""What Python runs as C, to be converted: iterators as generators, folds, loops that fill."""


def filter_items(test, items):
    for item in items:
        if item if test is None else test(item):
            yield item


def filterfalse(test, items):
    for item in items:
        if not (item if test is None else test(item)):
            yield item


def compress(items, selectors):
    for item, selected in zip(items, selectors, strict=False):
        if selected:
            yield item


def groupby(items, key=None):
    seen, known, start = [], [], 0
    for item in items:
        asked = item if key is None else key(item)
        if known and asked != known[-1]:
            yield known[-1], seen[start:]
            start = len(seen)
        seen.append(item)
        known.append(asked)
    if seen:
        yield known[-1], seen[start:]


def takewhile(test, items):
    for item in items:
        if not test(item):
            return
        yield item


def dropwhile(test, items):
    dropping = True
    for item in items:
        dropping = dropping and test(item)
        if not dropping:
            yield item


def chain(*iterables):
    for items in iterables:
        yield from items


def reduce(function, items, *initial):
    out = initial[0] if initial else items[0]
    for item in items if initial else items[1:]:
        out = function(out, item)
    return out


def cmp_to_key(mycmp):
    class Key:
        __slots__ = ("obj",)

        def __init__(self, obj):
            self.obj = obj

        def __lt__(self, other):
            return mycmp(self.obj, other.obj) < 0

        def __gt__(self, other):
            return mycmp(self.obj, other.obj) > 0

        def __eq__(self, other):
            return mycmp(self.obj, other.obj) == 0

        def __le__(self, other):
            return mycmp(self.obj, other.obj) <= 0

        def __ge__(self, other):
            return mycmp(self.obj, other.obj) >= 0

    return Key


def add_each(found, items):
    for item in items:
        found.add(item)


def count_each(found, items):
    for item in items:
        found[item] = found.get(item, 0) + 1


def put_pairs(found, pairs):
    for key, value in pairs:
        found[key] = value


def count_pairs(found, pairs):
    for key, value in pairs:
        found[key] = found.get(key, 0) + value
