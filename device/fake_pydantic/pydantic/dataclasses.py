import dataclasses
def dataclass(cls=None, *, config=None, **k):
    return dataclasses.dataclass(**k) if cls is None else dataclasses.dataclass(cls)
