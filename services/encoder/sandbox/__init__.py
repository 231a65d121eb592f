"""Decoding apart: each sound, video and HEIC picture is decoded by a process of its own.

The libraries that do it are large, and were written for files that one trusts. Theirs is a process that can open no file and no
connection, that ends when it has used up its memory or its time, and whose crash is one failed request. It is a copy of a
worker that has loaded the libraries, which takes twenty times as long as to decode a short sound, and that has seen no file.
"""
