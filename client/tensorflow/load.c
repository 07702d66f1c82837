/*
 * load.c — tf.load_op_library: registers everything, and keeps the reason when that did not work.
 */
#include "tf.h"

#include <stdio.h>

static char problem[512];

/* What went wrong while this library was loaded; "" when nothing. */
__attribute__((visibility("default"))) const char *ringmaster_tf_problem(void);

const char *ringmaster_tf_problem(void)
{
    return problem;
}

__attribute__((constructor)) static void load(void)
{
    TF_Status *status = TF_NewStatus();
    ops_register(status);
    if (TF_GetCode(status) == TF_OK)
        kernels_register(status);
    if (TF_GetCode(status) != TF_OK)
        snprintf(problem, sizeof(problem), "%s", TF_Message(status));
    TF_DeleteStatus(status);
}
