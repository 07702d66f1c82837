/* A TF_CONFIG from anywhere: read within bounds or refused in words. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "job/tfconfig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tfconfig_task task;
    struct error e = ERROR_INIT;

    if (tfconfig_parse((const char *)data, size, &task, &e) == 0) {
        if (task.index < 0 || task.cluster_size < 0 || strnlen(task.type, sizeof task.type) == sizeof task.type)
            abort();
    } else if (e.kind == ERROR_NONE || e.text[0] == '\0') {
        abort();
    }
    return 0;
}
