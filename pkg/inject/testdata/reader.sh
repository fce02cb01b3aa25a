#!/bin/sh
# Reads messages of fleet line by line and answers each: a header that counts
# the body's lines, then so many lines. A count makes a body that imitates a
# header harmless. ANSWER is the command that answers, by default `fleet reply`.
: "${ANSWER:=fleet reply}"
printf 'ready\n'
while IFS= read -r header; do
	case $header in
	'[fleet '*' from '*', '*' line'*) ;;
	*) continue ;; # what a person types
	esac
	rest=${header#\[fleet } id=${rest%% *}
	rest=${rest#* from } from=${rest%%,*}
	rest=${rest#*, } left=${rest%% *}
	body=
	while [ "$left" -gt 0 ] && IFS= read -r line; do
		body=$body$line'
'
		left=$((left - 1))
	done
	$ANSWER "$id" "$from says: ${body%?}"
done
