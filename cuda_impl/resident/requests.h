// The kernel of a plan as a request to the compiler: pure functions, which say nothing of a device.
//
// A kernel of slices has two forms. Its plan is the kernel's argument, so that all networks of one kind have one kernel; or its
// plan is constants of the code. Which of them is taken, plan_form_of() decides.
#pragma once

#include "core/workload.h"
#include "jit/request.h"
#include "resident/trainer.h"

namespace headroom::resident {

/// Whichever was measured to be the better one: never kChosen.
PlanForm plan_form_of(const SlicePlan& plan, Precision precision);

/// `form`: of slices without slots alone. Blocks and patches have their plan as an argument, columns and slices with slots as constants.
/// Throws UnsupportedError if there is no kernel for such a plan.
jit::Request request_of(const AnyPlan& plan, Precision precision, PlanForm form = PlanForm::kChosen);

/// Of a thread block of that kernel.
int threads_of(const AnyPlan& plan, Precision precision);

}  // namespace headroom::resident
