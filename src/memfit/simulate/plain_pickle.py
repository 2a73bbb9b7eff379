"""Reading pickles of plain data from anyone: dict with text keys, list, tuple, text, numbers, True, False, None.

Python's own unpickler can be asked to refuse globals, but not to refuse a file that is small and takes for ever (keys
whose hash never ends, or all collide). Here only the opcodes for plain data exist, and time and memory are bounded.
"""

from __future__ import annotations

import pickle as names
import struct
import time
from typing import Any, NoReturn

from memfit.core.errors import UsageError

_BATCH = 100_000  # opcodes between two looks at the clock
_WHOLE = {names.BININT[0]: (4, True), names.BININT1[0]: (1, False), names.BININT2[0]: (2, False)}
_TEXT = {names.SHORT_BINUNICODE[0]: 1, names.BINUNICODE[0]: 4, names.BINUNICODE8[0]: 8}
_CONSTANT = {names.NONE[0]: None, names.NEWTRUE[0]: True, names.NEWFALSE[0]: False, names.EMPTY_TUPLE[0]: ()}
_TUPLE = {names.TUPLE1[0]: 1, names.TUPLE2[0]: 2, names.TUPLE3[0]: 3}
_CODE = {names.GLOBAL[0]: "GLOBAL", names.STACK_GLOBAL[0]: "STACK_GLOBAL", names.REDUCE[0]: "REDUCE",
         names.BUILD[0]: "BUILD", names.INST[0]: "INST", names.OBJ[0]: "OBJ", names.NEWOBJ[0]: "NEWOBJ",
         names.NEWOBJ_EX[0]: "NEWOBJ_EX", names.EXT1[0]: "EXT1", names.EXT2[0]: "EXT2", names.EXT4[0]: "EXT4",
         names.PERSID[0]: "PERSID", names.BINPERSID[0]: "BINPERSID"}


class NotPlain(UsageError):
    """The bytes are not a pickle of plain data."""


def load_plain(data: bytes, *, limit_s: float = 60.0, max_containers: int = 20_000_000) -> Any:
    """The object that `data` pickles.

    Raises NotPlain, one line, for anything that is no plain data: broken, cut short, calling for code, or beyond the
    limits of time and of the number of lists and dicts.
    """
    reader = _Reader(data, max_containers)
    deadline = time.monotonic() + limit_s
    try:
        while not reader.run(_BATCH):
            if time.monotonic() > deadline:
                raise NotPlain(f"reading takes longer than {limit_s:g} s")
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error):
        raise NotPlain(f"the data is broken or cut short at byte {reader.position} of {len(data)}") from None
    return reader.stack[-1]


class _Reader:
    def __init__(self, data: bytes, max_containers: int) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.containers_left = max_containers

    def run(self, count: int) -> bool:
        """Do up to `count` opcodes; True at the end. Memo reads come first: they are three of four opcodes."""
        data, stack, memo, position = self.data, self.stack, self.memo, self.position
        try:
            for _ in range(count):
                code = data[position]
                position += 1
                if code == 0x68:  # BINGET
                    stack.append(memo[data[position]])
                    position += 1
                elif code == 0x6A:  # LONG_BINGET
                    stack.append(memo[int.from_bytes(data[position:position + 4], "little")])
                    position += 4
                elif code == 0x94:  # MEMOIZE
                    memo[len(memo)] = stack[-1]
                elif code == 0x28:  # MARK
                    self.marks.append(len(stack))
                elif code == 0x8A:  # LONG1
                    end = position + 1 + data[position]
                    stack.append(int.from_bytes(data[position + 1:end], "little", signed=True))
                    position = end
                elif code == 0x2E:  # STOP
                    return len(stack) == 1 or _broken()
                else:
                    self.position = position
                    self._other(code)
                    position = self.position
        finally:
            self.position = position
        return False

    def _other(self, code: int) -> None:
        stack = self.stack
        if code in _WHOLE:
            length, signed = _WHOLE[code]
            stack.append(int.from_bytes(self._take(length), "little", signed=signed))
        elif code in b"}]":
            self._container({} if code == 0x7D else [])
        elif code in b"useald":
            self._fill(code)
        elif code in _TEXT:
            length = int.from_bytes(self._take(_TEXT[code]), "little")
            stack.append(self._take(length).decode("utf-8", "surrogatepass"))
        elif code in _CONSTANT:
            stack.append(_CONSTANT[code])
        elif code in _TUPLE or code == names.TUPLE[0]:
            start = len(stack) - _TUPLE[code] if code in _TUPLE else self.marks.pop()
            self._container(tuple(self._above(start)))
        elif code == names.BINFLOAT[0]:
            stack.append(struct.unpack(">d", self._take(8))[0])
        else:
            self._rare(code)

    def _rare(self, code: int) -> None:
        if code == names.BINPUT[0]:
            self.memo[self._take(1)[0]] = self.stack[-1]
        elif code == names.LONG_BINPUT[0]:
            self.memo[int.from_bytes(self._take(4), "little")] = self.stack[-1]
        elif code == names.PROTO[0]:
            self._take(1)
        elif code == names.FRAME[0]:
            self._take(8)
        elif code in _CODE:
            raise NotPlain(f"it asks to run Python code (opcode {_CODE[code]} at byte {self.position - 1}"
                           f"{self._named(code)})")
        else:
            raise NotPlain(f"byte {self.position - 1} is opcode {code:#04x}, which plain data does not need")

    def _fill(self, code: int) -> None:
        """APPENDS, APPEND, SETITEMS, SETITEM, LIST, DICT."""
        stack = self.stack
        single = {0x61: 1, 0x73: 2}.get(code)  # APPEND, SETITEM
        items = self._above(len(stack) - single if single else self.marks.pop())
        if code in b"ld":
            self._container([] if code == 0x6C else {})
        target = stack[-1]
        if code in b"eal":
            if type(target) is not list:
                _broken()
            target.extend(items)
            return
        keys = items[::2]
        if type(target) is not dict:
            _broken()
        if not all(type(key) is str for key in keys):
            raise NotPlain(f"byte {self.position - 1} sets a key of a dict that is not text")
        target.update(zip(keys, items[1::2], strict=True))

    def _container(self, new: Any) -> None:
        self.containers_left -= 1
        if self.containers_left < 0:
            raise NotPlain("it holds too many lists and dicts")
        self.stack.append(new)

    def _above(self, start: int) -> list[Any]:
        if start < 0 or start > len(self.stack):
            _broken()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _take(self, length: int) -> bytes:
        end = self.position + length
        if end > len(self.data):
            _broken()
        taken = self.data[self.position:end]
        self.position = end
        return taken

    def _named(self, code: int) -> str:
        """What a GLOBAL names, as far as it is readable."""
        if code == names.GLOBAL[0]:
            lines = self.data[self.position:self.position + 200].split(b"\n")[:2]
            return ", " + ".".join(line.decode("ascii", "replace") for line in lines)
        if code == names.STACK_GLOBAL[0]:
            return ", " + ".".join(part for part in self.stack[-2:] if isinstance(part, str))[:200]
        return ""


def _broken() -> NoReturn:
    raise ValueError
