#!/usr/bin/env bash
# plot_loss.sh LOG.jsonl [PLOT.png] - draws the training and the validation loss of a run against its steps, and below
# them the noise scale where it was measured
set -euo pipefail
[ $# -ge 1 ] && [ $# -le 2 ] || { echo "usage: dev/plot_loss.sh LOG.jsonl [PLOT.png]" >&2; exit 2; }
log=$1 plot=${2:-${1%.jsonl}.png}
[ -f "$log" ] || { echo "error: \"$log\" is not a file; expected the log.jsonl of a run" >&2; exit 2; }
case $plot in
    *.png) ;;
    *) echo "error: \"$plot\" is the second argument; expected a .png to draw into; one log at a time" >&2
       exit 2 ;;
esac
jq -e . "$log" >/dev/null 2>&1 || {
    echo "error: \"$log\" is not JSON, one object a line; expected the log.jsonl of a run" >&2
    exit 2
}
points=$(mktemp -d)
trap 'rm -rf "$points"' EXIT
# Every step once: "resume" takes back what comes after its step.
jq -c -s 'reduce .[] as $e ([]; if $e.event == "resume"
        then map(select((.event == "step" and .step < $e.step) or (.event == "val" and .step <= $e.step)))
        elif $e.event == "step" or $e.event == "val" then . + [$e] else . end) | .[]' "$log" >"$points/log"
jq -r 'select(.event == "step" and .loss != null) | [.step + 1, .loss] | @tsv' "$points/log" >"$points/train"
jq -r 'select(.event == "val" and .loss != null) | [.step, .loss] | @tsv' "$points/log" >"$points/val"
[ -s "$points/train" ] || { echo "error: \"$log\" has no steps with a loss; there is nothing to draw" >&2; exit 2; }
curves="'$points/train' using 1:2 with lines lc rgb '#9ecae1' title 'training'"
blue="lc rgb '#08519c'"
[ -s "$points/val" ] && curves+=", '$points/val' using 1:2 with linespoints lw 2 pt 7 ps 0.8 $blue title 'validation'"
jq -r 'select(.event == "step" and .noise_scale_seq != null) | [.step + 1, .noise_scale_seq] | @tsv' \
    "$points/log" >"$points/noise"
height=600 before="" after=""
if [ -s "$points/noise" ]; then
    height=900 before="set multiplot layout 2,1"
    after="set logscale y; set ylabel 'noise scale (sequences)'
        plot '$points/noise' using 1:2 with lines lc rgb '#31a354' notitle"
fi
gnuplot <<GNUPLOT
set terminal pngcairo size 960,$height
set output '$plot'
$before
set xlabel 'steps'
set ylabel 'loss (nats a token)'
set grid
plot $curves
$after
GNUPLOT
