"""Names that files of ours import; none of them is used here."""
class _Name:
    def __init__(self, *a, **k): pass
    def __call__(self, *a, **k): return a[0] if a else self
class BaseModel: pass
class ValidationError(Exception): pass
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return _Name
