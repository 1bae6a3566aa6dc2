"""The protocol of DPDPCA.

Its functions take and return bytes and values; they do no I/O and read no clock.

Other packages may import every module.
"""
