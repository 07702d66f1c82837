/*
 * done.h — the end of an asynchronous kernel.
 *
 * TensorFlow hands an asynchronous kernel a `done` that points to a std::function<void()> on the stack of its caller: gone when
 * the kernel returns. (Eager mode waits and hides it; graph mode crashes.) So the function is moved to the heap.
 */
#ifndef RINGMASTER_TF_DONE_H
#define RINGMASTER_TF_DONE_H

#ifdef __cplusplus
extern "C" {
#endif

void *done_take(void *done); /* to be given to done_run, once */
void done_run(void *taken);

#ifdef __cplusplus
}
#endif
#endif
