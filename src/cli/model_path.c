#include "cli/model_path.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static bool is_gguf(const char *name) {
    size_t n = strlen(name);
    return n > 5 && strcasecmp(name + n - 5, ".gguf") == 0;
}

static bool has_config(const char *dir) {
    ml_text path = { 0 };
    struct stat st;
    bool there;

    ml_text_printf(&path, "%s/config.json", dir);
    there = stat(path.ptr, &st) == 0;
    ml_text_release(&path);
    return there;
}

/* Appends the path of the first GGUF file in a directory that has no config.json. */
static bool find_gguf(ml_text *out, const char *dir) {
    DIR *d = has_config(dir) ? NULL : opendir(dir);
    char first[sizeof(((struct dirent *)0)->d_name)] = "";
    struct dirent *e;

    if (!d)
        return false;
    while ((e = readdir(d)) != NULL)
        if (is_gguf(e->d_name) && (!*first || strcmp(e->d_name, first) < 0))
            snprintf(first, sizeof first, "%s", e->d_name);
    closedir(d);
    if (*first)
        ml_text_printf(out, "%s/%s", dir, first);
    return *first != 0;
}

/* The number of letters, digits and . _ - from s on. */
static size_t word(const char *s) {
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || (s[n] && strchr("._-", s[n])))
        n++;
    return n;
}

/* OWNER/NAME, optionally after the Hub's address; a path that begins with a dot or a
 * slash is not an id. */
static bool hub_id(ml_str *id, ml_str *name, const char *path) {
    static const char *const before[] = { "https://huggingface.co/", "huggingface.co/",
                                          "hf://" };
    bool address = false;
    size_t owner, n;

    for (size_t i = 0; i < sizeof before / sizeof *before && !address; i++)
        if (strncmp(path, before[i], strlen(before[i])) == 0) {
            path += strlen(before[i]);
            address = true;
        }
    owner = word(path);
    if (!owner || path[0] == '.' || path[owner] != '/')
        return false;
    *name = (ml_str){ path + owner + 1, word(path + owner + 1) };
    n = owner + 1 + name->len;
    *id = (ml_str){ path, n };
    return name->len && (!path[n] || address);
}

bool ml_model_path_wrong(ml_text *out, const char *flag, const char *path) {
    ml_text inside = { 0 };
    ml_str id, name;
    struct stat st;
    bool there = stat(path, &st) == 0;
    size_t before = out->len;

    if (there && S_ISDIR(st.st_mode) && find_gguf(&inside, path))
        ml_text_printf(out,
                       "%s '%s' has no config.json; to read the GGUF file in it, give its "
                       "path: %s %s",
                       flag, path, flag, inside.ptr);
    else if (there && !S_ISDIR(st.st_mode) && !is_gguf(path))
        ml_text_printf(out,
                       "%s '%s' is a file: expected the directory of a Hugging Face "
                       "checkpoint, with config.json and safetensors files, or a .gguf "
                       "file",
                       flag, path);
    else if (!there && is_gguf(path))
        ml_text_printf(out, "%s '%s': no such file", flag, path);
    else if (!there && hub_id(&id, &name, path))
        ml_text_printf(out,
                       "%s '%s': no such directory, and miles does not download models; "
                       "for a model of the Hugging Face Hub, run `hf download %.*s "
                       "--local-dir %.*s`, then this command with `%s ./%.*s`",
                       flag, path, (int)id.len, id.ptr, (int)name.len, name.ptr, flag,
                       (int)name.len, name.ptr);
    ml_text_release(&inside);
    return out->len > before;
}
