"""Which line of a script each line of its rewritten form comes from."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

from migrate.syntax.origins import Message, Related, at_line, at_lines, at_origin, origins


def test_a_changed_line_comes_from_the_one_it_took_the_place_of() -> None:
    before = ["def f(x):", "    y = x.cuda()", "    return y", ""]
    after = ["import torch_xla", "def f(x):", "    y = x.to('xla')", "    return y", ""]
    assert origins(before, after) == {2: (1, 0), 3: (2, 0), 4: (3, 0), 5: (4, 0)}


def test_lines_that_move_to_the_right_say_by_how_much() -> None:
    before = ["loss.backward()", "optimizer.step()"]
    after = ["with torch_xla.step():", "    loss.backward()", "    optimizer.step()"]
    assert origins(before, after) == {2: (1, -4), 3: (2, -4)}


def test_many_equal_lines_keep_their_order() -> None:
    functions = [
        ["", "", f"def f{n}(x):", "    y = x.cuda()", f"    return y + {n}"] for n in range(300)
    ]
    before = [line for function in functions for line in function]
    after = [line.replace(".cuda()", ".to('xla')") for line in before]
    assert origins(before, after) == {n: (n, 0) for n in range(1, len(before) + 1)}


def test_lines_that_go_and_come_move_no_other() -> None:
    draw = random.Random(5)
    before = [draw.choice(["", "pass", f"a = {n}", "b()", "return"]) for n in range(400)]
    kept = [n for n in range(400) if draw.random() < 0.9]
    after = []
    expected = {}
    for n in kept:
        if draw.random() < 0.1:
            after.append(f"added_{len(after)} = 1")
        after.append(before[n])
        if before[n].startswith("a ="):  # the only lines that occur once
            expected[len(after)] = (n + 1, 0)
    found = origins(before, after)
    assert {line: found[line] for line in expected} == expected
    assert sorted(found.values()) == [found[line] for line in sorted(found)]


def test_a_line_that_moves_and_names_another_device_keeps_its_origin() -> None:
    before = ["a = f(x)", "k = int(n.sum())", 'm = m + zeros((k, 4), device="cuda")', "loss = g(a)"]
    after = [
        "a = f(x)",
        "loss = g(a)",
        "k = int(n.sum())",
        'm = m + zeros((k, 4), device="xla")',
        "h(m, loss, a)",
    ]
    assert {j: i for j, (i, _) in origins(before, after).items()} == {1: 1, 2: 4, 3: 2, 4: 3}


def test_a_message_keeps_the_lines_that_it_names_as_data() -> None:
    text = f'`x == "line 4"` ({at_line(4)}), {at_lines([7, 9])} and {at_line(2, Path("/a/net.py"))}'
    message = Message.of(text)
    assert message == '`x == "line 4"` (line 4), line 7, 9 and net.py:2'
    assert [related.line for related in message.related] == [4, 7, 9, 2]
    assert message.related[-1].path == Path("/a/net.py")
    again = pickle.loads(pickle.dumps(message))
    assert (again, again.related) == (message, message.related)
    assert at_origin(message.ended(" (called from a.py:4)"), {4: (3, 0), 7: (6, 0), 9: (8, 0)}) == (
        '`x == "line 4"` (line 3), line 6, 8 and net.py:2 (called from a.py:4)'
    )
    assert str(at_origin(Message.of(at_line(5)), {})) == "a line that the rewrite added"
    assert str(Related(3, cell=2)) == "line 3 of cell 2"
