/*
 * logline.h — lines of a pod's log as the kubelet gives them with timestamps=true, and how a stream goes on after it broke. Pure.
 */
#ifndef CLI_LOGLINE_H
#define CLI_LOGLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Splits "2026-02-03T04:05:06.123456789Z text": nanoseconds since 1970 and where the text begins. False: there is no timestamp
 * (a piece of a line that was too long); *ret_text_at is 0 then. */
bool logline_split(const char *line, size_t len, int64_t *ret_ns, size_t *ret_text_at);

/*
 * Where a stream stands. A stream that is opened again begins at a whole second (sinceTime), so it repeats lines: those that
 * were here are dropped. Lines of the same nanosecond are counted. A last line that was cut by the break comes again whole.
 */
struct logline_place {
    int64_t last_ns;        /* of the last line given; 0 = none yet */
    uint32_t at_last;       /* lines given that carry it */
    size_t last_len;        /* bytes of the last line */
    uint32_t to_skip;       /* after a break: lines of last_ns that are still to be repeated */
    bool repeating;
};
/* The stream broke and is opened again; returns the second to begin at (Unix), 0 = from the beginning. */
int64_t logline_again(struct logline_place *p);
/* True when the line is a new one. `has_time` as logline_split said. */
bool logline_is_new(struct logline_place *p, bool has_time, int64_t ns, size_t len);

#endif
