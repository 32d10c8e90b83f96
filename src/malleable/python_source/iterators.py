"""What Python runs as C, to be converted: its iterators, as generators, and loops that fill."""


def filter_items(test, items):
    for item in items:
        if item if test is None else test(item):
            yield item


def filterfalse(test, items):
    for item in items:
        if not (item if test is None else test(item)):
            yield item


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
