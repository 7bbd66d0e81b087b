"""Import of all ways, which registers them."""

from __future__ import annotations

from tests.campaign._hostile import (
    archives as archives,
)
from tests.campaign._hostile import (
    bundle as bundle,
)
from tests.campaign._hostile import (
    drawn as drawn,
)
from tests.campaign._hostile import (
    metadata as metadata,
)
from tests.campaign._hostile import (
    mirror as mirror,
)
from tests.campaign._hostile import (
    network as network,
)
from tests.campaign._hostile import (
    node as node,
)
from tests.campaign._hostile import (
    node_outputs as node_outputs,
)
from tests.campaign._hostile import (
    node_users as node_users,
)
from tests.campaign._hostile import (
    users as users,
)
from tests.campaign._hostile import (
    worker as worker,
)
