# help.sh - for scripts to source first: -h and --help print the comment that a script begins with
#
#   most_words COUNT "$@"     refuses more words than a script uses
#   whole_numbers "$@"        refuses words that are no whole numbers from 1 on
# shellcheck shell=bash
case ${1:-} in
    -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
esac

most_words() {
    local most=$1
    shift
    [ $# -gt "$most" ] || return 0
    shift "$most"
    echo "error: \"$1\" is not understood; see $(basename "$0") --help" >&2
    exit 2
}

whole_numbers() {
    local word
    for word; do
        [[ $word =~ ^[1-9][0-9]{0,8}$ ]] ||
            { echo "error: \"$word\" is no whole number from 1 on; see $(basename "$0") --help" >&2; exit 2; }
    done
}
