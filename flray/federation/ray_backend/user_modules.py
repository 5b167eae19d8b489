"""Ship the user's own modules to other processes, which lack the files."""

from __future__ import annotations

import sys
import sysconfig

from ray import cloudpickle

from flray import registry
from flray.config.plugins import MODULE_PREFIX


def ship_user_modules() -> None:
    """Pickle everything defined in the user's own modules by value.

    These are the plug-ins that a configuration names, and the modules that registered components
    from Python. Installed packages are assumed to be installed everywhere.
    """
    installed = sysconfig.get_paths()
    names = {name for name in list(sys.modules) if name.startswith(MODULE_PREFIX)}
    names |= {
        getattr(item, "__module__", "")
        for entries in registry.ALL.values()
        for item in entries.added().values()
    }
    for name in sorted(names):
        module = sys.modules.get(name)
        path = getattr(module, "__file__", None)
        if module and path and not path.startswith((installed["purelib"], installed["platlib"])):
            cloudpickle.register_pickle_by_value(module)
