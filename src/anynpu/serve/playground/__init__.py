"""The playground: a page on which a model, an image and a chip become results side by side.

It is a part of a server for one person at one machine: loopback only, one job at a time. Untrusted models and images are
opened in a process with limits; the server itself only stores and hands on bytes.
"""

from .mount import JobLimits, Playground

__all__ = ["JobLimits", "Playground"]
