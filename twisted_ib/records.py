"""
C{define} and C{frozen} of attrs for records (L{twisted_ib.layouts.Record}), of which a program that starts
makes forty and uses ten.

attrs makes an C{Attribute} of each field and compiles C{__init__}, C{__eq__} and C{__hash__}: a tenth of all
that a program with sockets executes until it has connected.  Here each is made when somebody asks for it
first: methods by their first call, attributes by L{attrs.fields} or L{attrs.evolve}.  To whoever checks types
they are attrs'.
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
                name: field(
                    default=default,
                    converter=converter,
                    metadata={FIELD: place} if place else None,
                    eq=name not in kind.__apart__,
                    repr=name not in kind.__apart__,
                )
                for name, (default, converter, place) in kind.__fields__.items()
            }
            found = make_class(kind.__name__, made, kw_only=not kind.__match_args__).__attrs_attrs__
            kind.__attrs_attrs__ = found
            return found

    def define(kind=None, /, **options):
        """
        See C{attrs.define}: C{repr} has to be L{False}, and no method may use C{super()}.  C{slots},
        C{weakref_slot}, C{eq}, C{kw_only} and C{__attrs_post_init__} are known, and of fields defaults,
        converters and C{eq=False, repr=False}.  Derived classes that have fields are to be made by this, too.
        """
        return partial(_made, **options) if kind is None else _made(kind, **options)

    def frozen(kind=None, /, **options):
        """
        The same of C{attrs.frozen}.
        """
        return define(kind, isFrozen=True, **options)

    def _made(kind, *, repr, eq=True, slots=True, weakref_slot=True, kw_only=False, isFrozen=False):
        # What is not known here is attrs' own.
        assert not repr and (slots or not isFrozen)
        names = [name for name, said in kind.__annotations__.items() if not said.startswith("ClassVar")]
        own = {name: _declared(vars(kind).get(name, NOTHING)) for name in names}
        inherited = getattr(kind, "__fields__", {})
        apart = {name for name in names if _isApart(vars(kind).get(name))}
        if slots:
            left = (*own, "__dict__", "__weakref__")
            body = {name: value for name, value in vars(kind).items() if name not in left}
            found = [name for name in names if name not in inherited]
            if weakref_slot and not any(base.__weakrefoffset__ for base in kind.__bases__):
                found.append("__weakref__")
            body.update(__slots__=tuple(found), __qualname__=kind.__qualname__)
            kind = type(kind)(kind.__name__, kind.__bases__, body)
        else:
            for name in own.keys() & vars(kind).keys():
                delattr(kind, name)
        kind.__fields__ = {name: each for name, each in inherited.items() if name not in own} | own
        kind.__match_args__ = () if kw_only else tuple(kind.__fields__)
        kind.__apart__ = getattr(kind, "__apart__", frozenset()) - own.keys() | apart
        kind.__attrs_attrs__ = _Attributes()
        kind.__init__ = _first(kind, "__init__", partial(_initText, isFrozen=isFrozen))
        if eq:
            kind.__eq__ = _first(kind, "__eq__", _equalText)
            kind.__hash__ = _first(kind, "__hash__", _hashText) if isFrozen else None
        if isFrozen:
            kind.__setattr__ = kind.__delattr__ = _refuse
            kind.__setstate__ = _restore
        return kind

    def _declared(value):
        # Its default, what converts it, and its place in a layout.
        if type(value) is not _DECLARED:
            assert type(value) is not Factory
            return value, None, None
        place = value.metadata.get(FIELD)
        return (value._default if place is None else place.default), value.converter, place

    def _isApart(value):
        # Whether it is neither compared nor shown.
        if type(value) is not _DECLARED:
            return False
        # What is not known here is attrs' own.
        assert value.eq == value.repr and value.init and value._validator is value.on_setattr is None
        return not value.eq

    def _refuse(self, *_):
        raise FrozenInstanceError

    def _restore(self, state):
        # Of copy and pickle, for which object has no other way than __setattr__.
        for name, value in state[1].items():
            object.__setattr__(self, name, value)

    def _first(kind, name, text):
        def method(self, *values, **named):
            made = _compiled(kind, name, *text(kind))
            setattr(kind, name, made)
            return made(self, *values, **named)

        return method

    def _compiled(kind, name, lines, known):
        place = f"<record {kind.__module__}.{kind.__qualname__}>"
        exec(compile("\n".join(lines), place, "exec"), known)
        made = known[name]
        made.__qualname__ = f"{kind.__qualname__}.{name}"
        return made

    def _initText(kind, isFrozen):
        taken = ["self", "*"] if kind.__fields__ and not kind.__match_args__ else ["self"]
        lines = [" put = bind(self)"] if isFrozen else []
        known = {"bind": object.__setattr__.__get__, "NOTHING": NOTHING}
        for name, (default, converter, _) in kind.__fields__.items():
            value = argument = name.lstrip("_")
            if type(default) is Factory:
                known[f"make_{name}"] = default.factory
                argument += "=NOTHING"
                value = f"(make_{name}() if {value} is NOTHING else {value})"
            elif default is not NOTHING:
                known[f"default_{name}"] = default
                argument += f"=default_{name}"
            if converter is not None:
                known[f"convert_{name}"] = converter
                value = f"convert_{name}({value})"
            taken.append(argument)
            lines.append(f" put({name!r}, {value})" if isFrozen else f" self.{name} = {value}")
        if hasattr(kind, "__attrs_post_init__"):
            lines.append(" self.__attrs_post_init__()")
        return [f"def __init__({', '.join(taken)}):", *(lines or [" pass"])], known

    def _equalText(kind):
        pairs = [f"self.{name} == other.{name}" for name in kind.__fields__ if name not in kind.__apart__]
        return [
            "def __eq__(self, other):",
            " if other.__class__ is not self.__class__:",
            "  return NotImplemented",
            f" return {' and '.join(pairs) or 'True'}",
        ], {}

    def _hashText(kind):
        # As attrs' has it, a number of the class with the values.
        said = [f"self.{name}," for name in kind.__fields__ if name not in kind.__apart__]
        salt = hash((kind.__module__, kind.__qualname__))
        return ["def __hash__(self):", f" return hash(({salt}, {' '.join(said)}))"], {}


__all__ = ["define", "frozen"]
