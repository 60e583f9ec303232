# help.sh - sourced first by scripts: -h and --help print the comment at the beginning of the script
#
#   refuse MESSAGE...         prints the error and exits with 2; give_up: with 1
#   most_words COUNT "$@"     refuses more than COUNT arguments
#   whole_numbers "$@"        refuses arguments that are not positive integers
#   make_folder FLAG PATH     creates a folder for output, or refuses one that cannot be created or written to
#   each_once "$@"            refuses flags that are given twice before "--", other than ${several:-}
# shellcheck shell=bash
export LC_ALL=C.UTF-8  # elsewhere numbers may have a comma, and tools answer in other languages
case ${1:-} in
    -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
esac

refuse() {
    echo "error: $*" >&2
    exit 2
}
give_up() {
    echo "error: $*" >&2
    exit 1
}

most_words() {
    local most=$1
    shift
    [ $# -le "$most" ] || refuse "unexpected argument \"${*:most + 1:1}\"; see $(basename "$0") --help"
}

whole_numbers() {
    local word
    for word; do
        [[ $word =~ ^[1-9][0-9]{0,8}$ ]] || refuse "\"$word\" is not a positive integer; see $(basename "$0") --help"
    done
}

make_folder() {
    local why
    [[ $2 != -* ]] || refuse "$1 is \"$2\", a flag; expected a folder; see $(basename "$0") --help"
    why=$(mkdir -p -- "$2" 2>&1) || refuse "$1 is \"$2\"; expected a folder that can be created: ${why##*: }"
    [ -r "$2" ] && [ -w "$2" ] && [ -x "$2" ] || refuse "$1 is \"$2\"; expected a folder that can be written to"
}

each_once() {
    local word seen=' '
    for word; do
        [ "$word" != -- ] || return 0
        [[ $word != -* || $word = "${several:-}" || $seen != *" $word "* ]] ||
            refuse "$word is given more than once; expected it once; see $(basename "$0") --help"
        seen+="$word "
    done
}
