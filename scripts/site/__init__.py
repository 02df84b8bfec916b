"""Build of the documentation site: pages with executed code, and a generated reference.

The result is a folder that needs no network.
"""
