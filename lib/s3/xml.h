/*
 * xml.h — the little of XML that S3's answers need: the content of an element by its name. Pure.
 *
 * Attributes are passed over; elements of one name are not nested in these answers. What is cut or wrong is not found.
 */
#ifndef S3_XML_H
#define S3_XML_H

#include <stdbool.h>
#include <stddef.h>

struct xml { const char *text; size_t len; };

/* The next element of that name from *at on: its content. *at moves behind it; begin with at->text == whole. */
bool xml_next(struct xml *at, const char *name, struct xml *ret_content);
/* The text of the first one, entities decoded; owned. NULL: there is none. */
char *xml_text(struct xml whole, const char *name);

#endif
