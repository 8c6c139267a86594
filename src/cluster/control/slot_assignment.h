// Which worker takes which slot of a layout. Functions of a layout and the members; pure.
#pragma once

#include "cluster/control/layout.h"
#include "cluster/control/membership.h"

namespace millrace::cluster {

// Gives every empty slot a worker that is usable and has no other slot of the layout, as far as
// there are such workers. Stages that are closing get none.
//
// In order of preference: the worker that the plan names; one that holds these layers, or some of
// them, in `other`; one that holds them from an earlier session; the one that joined first. `other`
// may be null.
void FillSlots(Layout& layout, const Layout* other, const Membership& members);

}  // namespace millrace::cluster
