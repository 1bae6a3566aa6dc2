"""The command `dpdpca`. The part of each role is loaded only when it is used.

Other packages import only `demo` and `federation`.
"""
