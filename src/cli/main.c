/* SPDX-License-Identifier: Apache-2.0 */
/* `baton`: finds the subcommand and calls it. Help and the man page are printed from the same
 * tables that the subcommands parse with. */
#include "cli.h"

#include "role.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static int help_main(int argc, char **argv);
static int man_main(int argc, char **argv);
static int version_main(int argc, char **argv);

static const struct command help_command = {.name = "help",
                                            .summary = "this list, or what one command does",
                                            .operands = "[COMMAND]",
                                            .operand_max = 2};
static const struct command version_command = {.name = "version", .summary = "the version"};
static const struct command man_command = {
    .name = "man",
    .summary = "the manual page (roff)",
    .text = "Prints the manual page, made from the same tables as --help.\n"
            "  baton man | man -l -"};
static const struct command role_command = {.name = "role", .flags = OPTION_HIDDEN};

static const struct entry {
    const struct command *command;
    int (*run)(int argc, char **argv);
} entries[] = {
    {&up_command, up_main},
    {&serve_command, serve_main},
    {&prefill_command, prefill_main},
    {&decode_command, decode_main},
    {&router_command, router_main},
    {&run_command, run_main},
    {&bench_transfer_command, bench_transfer_main},
    {&bench_poll_command, bench_poll_main},
    {&bench_death_command, bench_death_main},
    {&bench_order_command, bench_order_main},
    {&bench_engine_command, bench_engine_main},
    {&bench_serve_command, bench_serve_main},
    {&bench_logits_command, bench_logits_main},
    {&bootstrap_command, bootstrap_main},
    {&demo_command, demo_main},
    {&info_command, info_main},
    {&help_command, help_main},
    {&man_command, man_main},
    {&version_command, version_main},
    {&role_command, role_main},
};

bool cli_parse(const struct command *command, int argc, char **argv, void *values, int *status)
{
    return cli_parse_operands(command, argc, argv, values, NULL, status);
}

bool cli_parse_operands(const struct command *command, int argc, char **argv, void *values,
                        struct option_operands *operands, int *status)
{
    char text[512];
    int rc = options_parse(command, argc, argv, values, operands, ERROR_BUFFER(text));
    if (rc == OPTIONS_HELP) {
        options_help(command, "baton", stdout);
        *status = CLI_OK;
    } else if (rc) {
        fprintf(stderr, "baton %s: %s\n", command->name, text);
        *status = CLI_USAGE;
    }
    return rc == BATON_OK;
}

int cli_failed(const char *what, const char *sentence)
{
    fprintf(stderr, "baton: %s: %s\n", what, sentence);
    return CLI_FAILED;
}

static void list_print(FILE *out)
{
    fputs("usage: baton COMMAND [OPTION]...\n\n"
          "Serves language models, with prefill and decode on separate workers.\n\ncommands:\n",
          out);
    for (size_t i = 0; i < COUNT(entries); i++)
        if (!(entries[i].command->flags & OPTION_HIDDEN))
            fprintf(out, "  %-16s %s\n", entries[i].command->name, entries[i].command->summary);
    fputs("\n\"baton COMMAND --help\" tells more about one.\n", out);
}

/* How many of the words name this command: "bench transfer" takes two. 0: it is another. */
static int words_match(const char *name, int argc, char **argv)
{
    for (int used = 0; used < argc; used++) {
        size_t length = strlen(argv[used]);
        if (!length || strncmp(name, argv[used], length) != 0)
            return 0;
        if (!name[length])
            return used + 1;
        if (name[length] != ' ')
            return 0;
        name += length + 1;
    }
    return 0;
}

static const struct entry *entry_find(int argc, char **argv, int *used)
{
    for (size_t i = 0; i < COUNT(entries); i++) {
        *used = words_match(entries[i].command->name, argc, argv);
        if (*used)
            return &entries[i];
    }
    return NULL;
}

/* "bench" alone, or "bench tranfer": the first word is right, so list the group. */
static bool group_explain(const char *group, const char *word)
{
    const char *names[COUNT(entries)];
    uint32_t count = 0;
    size_t length = strlen(group);
    for (size_t i = 0; i < COUNT(entries); i++) {
        const char *name = entries[i].command->name;
        if (strncmp(name, group, length) == 0 && name[length] == ' ')
            names[count++] = name + length + 1;
    }
    if (!count)
        return false;
    const char *near = word ? options_suggest(word, names, count) : NULL;
    if (near)
        fprintf(stderr, "baton %s: unknown command \"%s\"; did you mean %s?\n", group, word,
                near);
    else
        fprintf(stderr, "baton %s: %s%s%s; there are:", group, word ? "unknown command \"" : "",
                word ? word : "which one", word ? "\"" : "?");
    for (uint32_t i = 0; i < count && !near; i++)
        fprintf(stderr, " %s", names[i]);
    if (!near)
        fputc('\n', stderr);
    return true;
}

static void unknown_explain(const char *word)
{
    char firsts[COUNT(entries)][OPTION_ITEM_BYTES];
    const char *names[COUNT(entries)];
    uint32_t count = 0;
    for (size_t i = 0; i < COUNT(entries); i++) {
        const char *name = entries[i].command->name;
        if (entries[i].command->flags & OPTION_HIDDEN)
            continue;
        snprintf(firsts[count], sizeof(firsts[0]), "%.*s", (int)strcspn(name, " "), name);
        names[count] = firsts[count];
        count++;
    }
    const char *near = options_suggest(word, names, count);
    if (near)
        fprintf(stderr, "baton: unknown command \"%s\"; did you mean %s?\n", word, near);
    else
        fprintf(stderr, "baton: unknown command \"%s\" (\"baton help\" lists them)\n", word);
}

static int help_main(int argc, char **argv)
{
    int used = 0;
    const struct entry *entry = entry_find(argc, argv, &used);
    if (argc == 0 || strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        list_print(stdout);
        return CLI_OK;
    }
    if (entry && entry->command != &role_command) {
        options_help(entry->command, "baton", stdout);
        return CLI_OK;
    }
    if (!group_explain(argv[0], argc > 1 ? argv[1] : NULL))
        unknown_explain(argv[0]);
    return CLI_USAGE;
}

static int version_main(int argc, char **argv)
{
    int status = CLI_OK;
    if (cli_parse(&version_command, argc, argv, NULL, &status))
        printf("baton %s\n", baton_version());
    return status;
}

static int man_main(int argc, char **argv)
{
    int status = CLI_OK;
    if (!cli_parse(&man_command, argc, argv, NULL, &status))
        return status;
    printf(".TH BATON 1 \"\" \"baton %s\" \"User Commands\"\n", baton_version());
    puts(".ad l"); /* lists without blanks cannot be stretched */
    puts(".SH NAME\nbaton \\- serve language models, prefill and decode apart");
    puts(".SH SYNOPSIS\n.B baton\n.I COMMAND\n.RI [ OPTION ]...");
    puts(".SH DESCRIPTION\nServes language models by HTTP (serve), answers in the terminal "
         "(run), and measures\nand shows the hand\\-over of KV pages between a prefill and a "
         "decode process. Options may be written \\-\\-name VALUE or "
         "\\-\\-name=VALUE;"
         " numbers take\nK, M and G for powers of 1024; lists are separated by commas.");
    puts(".SH COMMANDS");
    for (size_t i = 0; i < COUNT(entries); i++)
        if (!(entries[i].command->flags & OPTION_HIDDEN))
            options_man(entries[i].command, "baton", stdout);
    puts(".SH EXIT STATUS\n0 when all went well and all bytes were right, 1 when not, 2 when "
         "the "
         "command line was\nnot understood.");
    puts(".SH ENVIRONMENT\n.TP\n.B BATON_LOG\nerror, warning, info or debug.\n.TP\n"
         ".B BATON_BACKENDS\nBackends in order of preference.\n.TP\n"
         ".B BATON_IB_DEVICE\nRDMA devices, where none are named otherwise.\n.TP\n"
         ".B BATON_PLUGINS\nFolder of libbaton_verbs.so and libbaton_ucx.so.\n.TP\n"
         ".B BATON_PEERS_VENV\nWhere bench/run_peers.sh keeps NIXL and Mooncake.");
    return CLI_OK;
}

/* Started with one of the first three closed, the next file or socket would get its number, and what
 * is printed would go there. */
static void standard_files_open(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO)
        ;
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    int used = 0;
    standard_files_open();
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        list_print(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return help_main(0, NULL);
    if (strcmp(argv[1], "--version") == 0)
        return version_main(0, NULL);
    const struct entry *entry = entry_find(argc - 1, argv + 1, &used);
    if (entry)
        return entry->run(argc - 1 - used, argv + 1 + used);
    if (!group_explain(argv[1], argc > 2 ? argv[2] : NULL))
        unknown_explain(argv[1]);
    return CLI_USAGE;
}
