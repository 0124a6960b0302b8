# The failed tests of a job's log, a line each: PACKAGE|TEST|the last line that it said. A package that broke off (panic, time limit, build)
# has no TEST: what came after the break never ran. Tests of unittest are of the package python.

function top(name) { sub("/.*", "", name); return name }
function report(package, test, words) { gsub(/[\t ]+/, " ", words); sub(/^ /, "", words); print package "|" test "|" words }

# go test -v: what is said of a package comes in one piece, which a line that begins with ok, FAIL or ? ends.
/^=== (RUN|CONT|NAME) / { current = top($3) }
/^ +[A-Za-z0-9_]+\.go:[0-9]+: / { said[current] = $0 }
/^--- FAIL: / { failed[++n] = $3 }
/^(panic: |fatal error: |SIG[A-Z]+: |signal: |\*\*\* Test killed)/ && broken == "" { broken = $0 }
/^(ok|FAIL|\?)[ \t]+[^ \t]/ {
	if ($1 == "FAIL") {
		sub("^holdfast.dev/holdfast/", "", $2)
		if (broken != "" || !n) report($2, "", broken != "" ? broken : $0)
		else for (i = 1; i <= n; i++) report($2, failed[i], said[failed[i]])
	}
	n = 0; broken = current = ""; split("", said)
}

# unittest: subtests are of their test; a traceback ends with what is wrong.
function unittest() { if (python != "" && !seen[python]++) report("python", python, words); python = words = "" }
/^(FAIL|ERROR): .*\(.*\)/ { unittest(); match($0, /\([^ )]*\)/); python = substr($0, RSTART + 1, RLENGTH - 2); next }
/^======|^Ran / { unittest() }
python != "" && NF && !/^-----/ { words = $0 }
END { unittest() }
