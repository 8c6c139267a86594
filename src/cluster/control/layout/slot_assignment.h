// Which worker takes which slot of a layout. Functions of a layout and the members; pure.
#pragma once

#include <string>

#include "base/status.h"
#include "cluster/control/layout/layout.h"
#include "cluster/control/parts/membership.h"

namespace millrace::cluster {

// Gives every empty slot a usable worker, as far as there are such workers. Stages that are closing
// get none. All slots of one node of the plan get the same worker; any other worker gets one slot.
//
// First the worker that the plan names, which gets no other slot, and the one that stands in for
// the node already. Then the workers that hold layers, in `other` or from an earlier session, get
// slots so that together they keep as much as possible (SpotServe section 3.3). The slots that are
// left get the workers with the newest protocol, of these the ones that joined first. `other` may
// be null.
//
// A group of stages (Layout::groups) gets workers of one bit class: that of the workers it has, or
// of those that the plan names, or of those it had last, or the class that can fill the group.
void FillSlots(Layout& layout, const Layout* other, const Membership& members);

// Whether some slot has a worker although the one that the plan names for it is usable, and of the
// same bit class.
bool NamedWorkerIsReplaced(const Layout& layout, const Membership& members);

// kFailedPrecondition: the plan names workers that have not joined. Free workers would take their
// places, which nobody who misspelt a name has asked for.
Status CheckNames(const Layout& layout, const Membership& members);

// kFailedPrecondition: workers that the plan names for one group are of different bit classes.
Status CheckBits(const Layout& layout, const Membership& members);

// Why the worker has no slot, if its bit class is the reason, as half a sentence; otherwise empty.
std::string WhyNoSlot(const Layout& layout, const Membership& members,
                      const Membership::Worker& worker);

}  // namespace millrace::cluster
