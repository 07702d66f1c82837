/*
 * text.h — the reason of the last failure, per thread, and the one way to fail.
 */
#ifndef CLIENT_TEXT_H
#define CLIENT_TEXT_H

#define TEXT_MAX 512

/* Sets the calling thread's reason and gives `code` back: return text_fail(RM_INVALID, "root %d is not a rank", root); */
int text_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *text_last(void);

#endif
