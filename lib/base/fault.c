#include "base/fault.h"

#include <stddef.h>

static fault_fn *hook;
static void *hook_ctx;

int fault(const char *operation, const char *path)
{
    return hook == NULL ? 0 : hook(hook_ctx, operation, path);
}

void fault_set(fault_fn *fn, void *ctx)
{
    hook = fn;
    hook_ctx = ctx;
}
