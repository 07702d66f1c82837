/* What comes over the CONTROL channel and in a client's report, after framing: any text must be refused or understood. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/json.h"
#include "sidecar/supervise/message.h"
#include "sidecar/supervise/progress.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error e = ERROR_INIT;
    auto_json cJSON *o = NULL;
    struct trainer_view trainer;
    struct progress_view view;
    struct ring_view ring;
    struct start_word start;
    struct abort_word abort_word;
    struct history history;
    struct join join;
    struct form form;
    static struct progress progress;

    progress_reset(&progress, -1);
    (void)!progress_merge(&progress, (const char *)data, size, 1, 1, &e);
    if (json_parse((const char *)data, size, &o, &e) != 0)
        return 0;
    (void)!trainer_decode(o, &trainer, &e);
    (void)!progress_decode(o, &view, &e);
    (void)!ring_decode(o, &ring, &e);
    (void)!start_decode(o, &start, &e);
    (void)!abort_decode(o, &abort_word, &e);
    (void)!history_decode(o, &history, &e);
    if (join_decode(o, &join, &e) == 0) { /* what is understood can be said again */
        cJSON *again = join_encode(&join);
        struct join twice;
        if (join_decode(again, &twice, &e) != 0)
            abort();
        join_release(&twice);
        join_release(&join);
        cJSON_Delete(again);
    }
    if (form_decode(o, &form, &e) == 0) {
        cJSON *again = form_encode(&form);
        struct form twice;
        if (form_decode(again, &twice, &e) != 0)
            abort();
        form_release(&twice);
        form_release(&form);
        cJSON_Delete(again);
    }
    return 0;
}
