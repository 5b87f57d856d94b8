"""
C{define} and C{frozen} of attrs for records (L{twisted_ib.layouts.Record}), of which a program that starts
makes forty and uses ten.

attrs makes an C{Attribute} of each field and compiles C{__init__}: a tenth of all that a program with sockets
executes until it has connected.  Here both are made when somebody asks for them first: C{__init__} by
the first object, attributes by L{attrs.fields} or L{attrs.evolve}.  To whoever checks types they are attrs'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import define, frozen
else:
    from functools import partial

    from attrs import NOTHING, Factory, field, make_class
    from attrs.exceptions import FrozenInstanceError

    from twisted_ib.layouts import FIELD

    _DECLARED = type(field())

    class _Attributes:
        """
        The C{__attrs_attrs__} of a class, until somebody asks for it.
        """

        def __get__(self, record, kind):
            made = {
                name: field(default=default, converter=converter, metadata={FIELD: place} if place else None)
                for name, (default, converter, place) in kind.__fields__.items()
            }
            found = make_class(kind.__name__, made, kw_only=not kind.__match_args__).__attrs_attrs__
            kind.__attrs_attrs__ = found
            return found

    def define(kind=None, /, **options):
        """
        See C{attrs.define}: C{eq} and C{repr} have to be L{False}, and no method may use C{super()}.
        C{slots}, C{kw_only} and C{__attrs_post_init__} are known, and defaults that are no factories.
        Derived classes that have fields are to be made by this, too.
        """
        return partial(_made, **options) if kind is None else _made(kind, **options)

    def frozen(kind=None, /, **options):
        """
        The same of C{attrs.frozen}.
        """
        return define(kind, isFrozen=True, **options)

    def _made(kind, *, eq, repr, slots=True, kw_only=False, isFrozen=False):
        # What is not known here is attrs' own.
        assert not (eq or repr) and (slots or not isFrozen)
        names = [name for name, said in kind.__annotations__.items() if not said.startswith("ClassVar")]
        own = {name: _declared(vars(kind).get(name, NOTHING)) for name in names}
        inherited = getattr(kind, "__fields__", {})
        if slots:
            left = (*own, "__dict__", "__weakref__")
            body = {name: value for name, value in vars(kind).items() if name not in left}
            found = [name for name in names if name not in inherited]
            if not any(base.__weakrefoffset__ for base in kind.__bases__):
                found.append("__weakref__")
            body.update(__slots__=tuple(found), __qualname__=kind.__qualname__)
            kind = type(kind)(kind.__name__, kind.__bases__, body)
        else:
            for name in own.keys() & vars(kind).keys():
                delattr(kind, name)
        kind.__fields__ = {name: each for name, each in inherited.items() if name not in own} | own
        kind.__match_args__ = () if kw_only else tuple(kind.__fields__)
        kind.__attrs_attrs__ = _Attributes()
        kind.__init__ = _first(kind, isFrozen)
        if isFrozen:
            kind.__setattr__ = kind.__delattr__ = _refuse
            kind.__setstate__ = _restore
        return kind

    def _declared(value):
        # Its default, what converts it, and its place in a layout.
        if type(value) is not _DECLARED:
            assert type(value) is not Factory
            return value, None, None
        place = value.metadata[FIELD]
        return place.default, value.converter, place

    def _refuse(self, *_):
        raise FrozenInstanceError

    def _restore(self, state):
        # Of copy and pickle, for which object has no other way than __setattr__.
        for name, value in state[1].items():
            object.__setattr__(self, name, value)

    def _first(kind, isFrozen):
        def __init__(self, *values, **named):
            kind.__init__ = _compiled(kind, isFrozen)
            kind.__init__(self, *values, **named)

        return __init__

    def _compiled(kind, isFrozen):
        taken = ["self", "*"] if kind.__fields__ and not kind.__match_args__ else ["self"]
        lines = [" put = bind(self)"] if isFrozen else []
        known = {"bind": object.__setattr__.__get__}
        for name, (default, converter, _) in kind.__fields__.items():
            value = argument = name.lstrip("_")
            if default is not NOTHING:
                known[f"default_{name}"] = default
                argument += f"=default_{name}"
            if converter is not None:
                known[f"convert_{name}"] = converter
                value = f"convert_{name}({value})"
            taken.append(argument)
            lines.append(f" put({name!r}, {value})" if isFrozen else f" self.{name} = {value}")
        if hasattr(kind, "__attrs_post_init__"):
            lines.append(" self.__attrs_post_init__()")
        text = "\n".join([f"def __init__({', '.join(taken)}):", *lines])
        exec(compile(text, f"<record {kind.__module__}.{kind.__qualname__}>", "exec"), known)
        made = known["__init__"]
        made.__qualname__ = f"{kind.__qualname__}.__init__"
        return made


__all__ = ["define", "frozen"]
