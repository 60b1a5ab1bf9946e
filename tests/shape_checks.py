"""How signatures are checked in tests: an int will do where a float is asked for."""

from beartype import BeartypeConf, beartype

checker = beartype(conf=BeartypeConf(is_pep484_tower=True))
