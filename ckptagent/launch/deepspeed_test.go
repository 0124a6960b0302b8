package launch

import (
	"strings"
	"testing"
)

func TestCheckDeepSpeed(t *testing.T) {
	const apart, past = "deepspeed: does not include the other pods: it would start 3 separate trainings, one per pod", "starts ranks on other machines without holdfast"
	for argv, want := range map[string]string{
		"deepspeed train.py": apart, "/opt/bin/deepspeed --num_gpus 8 train.py --no_ssh": apart, "deepspeed --num_gpus=8 -- train.py": apart,
		"python3 -u -m deepspeed.launcher.runner --num_nodes=3 train.py": apart, "python -mdeepspeed train.py": apart,
		"deepspeed --hostfile /h --launcher=slurm train.py": "--launcher=slurm: " + past, "deepspeed --launcher OpenMPI t.py": "--launcher OpenMPI: " + past,
		"deepspeed --launcher=pdsh ? t.py":                            "--launcher=pdsh: " + past,
		"deepspeed --no_ssh -H /h --node_rank=? --launcher=pdsh t.py": "", "deepspeed --hostfile=/h t.py": "", "deepspeed -H /h t.py": "", "deepspeed -H/h t.py": "",
		"deepspeed --hostf /h t.py": "", "deepspeed --launcher=? --hostfile ? t.py": "", "deepspeed ? t.py": "", "deepspeed": apart,
	} {
		got := ""
		if err := CheckDeepSpeed(strings.Fields(strings.ReplaceAll(argv, "?", Later)), 3, false); err != nil {
			got = err.Error()
		}
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q", argv, got)
		}
	}
	for _, c := range []struct {
		pods  int
		hosts bool
	}{{0, false}, {1, false}, {3, true}} {
		if err := CheckDeepSpeed([]string{"deepspeed", "t.py"}, c.pods, c.hosts); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestIsDeepSpeed(t *testing.T) {
	for argv, want := range map[string]bool{
		"deepspeed t.py": true, "/x/deepspeed": true, "python -m deepspeed.launcher.runner t.py": true, "python -m deepspeed.launcher.launch t.py": false,
		"python deepspeed": false, "python train.py --strategy deepspeed": false, "": false, "mydeepspeed": false,
	} {
		if got := IsDeepSpeed(strings.Fields(argv)); got != want {
			t.Errorf("%q: %v", argv, got)
		}
	}
}

func TestPlain(t *testing.T) {
	sh := func(text string) []string { return []string{"bash", "-c", text} }
	for _, c := range []struct {
		argv []string
		want string // words joined by |, one command per line; a value that is known only later is "?"
	}{
		{[]string{"deepspeed", "t.py"}, "deepspeed|t.py"},
		{sh("cd /w && deepspeed --num_gpus=$(nproc) 'a b' t.py"), "cd|/w\ndeepspeed|--num_gpus=?|a b|t.py"},
		{sh("set -e; export A=1\nB=2 exec deepspeed \"$X y\" ${Z:-$(q)} \\\n t.py 2>&1 | tee >/log x # end; z"), "set|-e\nexport|A=1\ndeepspeed|? y|?|t.py\ntee|x"},
		{sh("echo 'deepspeed t.py' \"a\\\"b\" c#d $5. $"), "echo|deepspeed t.py|a\"b|c#d|?.|$"},
		{[]string{"/bin/sh", "-euo", "pipefail", "-c", "a", "b"}, "a"},
		{[]string{"bash", "-lc", "# only\na;"}, "a"},
		{sh("a `b` c"), "a|?|c"},
		{sh("a é 'ü' \"ß\""), "a|é|ü|ß"},
		{sh("if x; then deepspeed t.py; fi"), ""}, {sh("x || deepspeed t.py"), ""}, {sh("[ -f x ] && deepspeed t.py"), ""}, {sh("(deepspeed t.py)"), ""},
		{sh("cat <<E\ndeepspeed\nE"), ""}, {sh("a 'b"), ""}, {sh("a $(b"), ""}, {sh("f() { a; }"), ""}, {sh("a `b"), ""},
		{[]string{"bash", "run.sh"}, ""}, {[]string{"bash", "-c"}, ""}, {nil, ""},
	} {
		var lines []string
		for _, words := range Plain(c.argv) {
			lines = append(lines, strings.ReplaceAll(strings.Join(words, "|"), Later, "?"))
		}
		if got := strings.Join(lines, "\n"); got != c.want {
			t.Errorf("%q:\n%s\nwant\n%s", c.argv, got, c.want)
		}
	}
}
