"""Runs a program on a kernel that refuses some of its calls, as a machine without IPv6 or privileges does.

Usage: without_calls.py RULE... -- PROGRAM ARGUMENTS..., a rule being CALL=ERROR or CALL:FIRST_ARGUMENT=ERROR,
by the names in errno and socket. Linux filters system calls for us (seccomp); no privilege is needed.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

_NUMBERS = {
    "x86_64": {"socket": 41, "bind": 49},
    "aarch64": {"socket": 198, "bind": 200},
}
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER_AT, _FIRST_ARGUMENT_AT = 0, 16


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def program(rules: list[str]) -> bytes:
    """The filter, in instructions of the kernel's packet filter."""
    numbers, code = _NUMBERS[platform.machine()], b""
    for rule in rules:
        call, _, error = rule.partition("=")
        name, _, argument = call.partition(":")
        answer = instruction(_RETURN, _ERROR | getattr(errno, error))
        code += instruction(_LOAD, _NUMBER_AT)
        if argument:
            code += instruction(_JUMP_IF_EQUAL, numbers[name], if_false=3)
            code += instruction(_LOAD, _FIRST_ARGUMENT_AT)
            code += instruction(_JUMP_IF_EQUAL, getattr(socket, argument), if_false=1) + answer
        else:
            code += instruction(_JUMP_IF_EQUAL, numbers[name], if_false=1) + answer
    return code + instruction(_RETURN, _ALLOW)


def deny(rules: list[str]) -> None:
    """From now on, in this process and what it starts."""
    code = ctypes.create_string_buffer(program(rules))
    loaded = struct.pack("HxxxxxxP", (len(code) - 1) // 8, ctypes.addressof(code))
    kernel = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, loaded, 0, 0)):
        if kernel.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    end = sys.argv.index("--")
    deny(sys.argv[1:end])
    os.execv(sys.argv[end + 1], sys.argv[end + 1 :])
