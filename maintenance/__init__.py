"""Tools of gpuprov's maintainers, for a checkout: the wheel and the collection do not contain them."""
