"""The proxy: it collects sealed shares, closes studies, adds the noise, and makes one release.

Other packages import only `precomputed`, `store`, `study_files` and `worker`.
"""
