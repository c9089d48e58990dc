/* python_modules.h - share/python, embedded so that the program needs no extra file.
 *
 * thread: any; immutable. */
#ifndef ML_PLUGIN_PYTHON_MODULES_H
#define ML_PLUGIN_PYTHON_MODULES_H

typedef struct ml_python_module {
    const char *name; /* "miles.utils.types" */
    const char *text;
} ml_python_module;

extern const ml_python_module ml_python_modules[]; /* ends with an entry without a name */

#endif
