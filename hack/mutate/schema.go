package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// variable names the change that is made, by its number from 1.
const variable = "HOLDFAST_CHANGE"

// other is what stands in for an operator, and operands what the compiler must know of what is on its sides. Equality and logic, which
// stand between values of any kind and short-circuit, are changed where they stand.
var other = map[token.Token][]string{
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
	token.ADD: {"-"}, token.SUB: {"+"}, token.MUL: {"/"}, token.QUO: {"*"}, token.REM: {"*"},
	token.AND: {"|"}, token.OR: {"&"}, token.SHL: {">>"}, token.SHR: {"<<"},
	token.EQL: {"!="}, token.NEQ: {"=="}, token.LAND: {"||"}, token.LOR: {"&&"},
}

// helpers is the file of functions that stand for operators.
func helpers(pkg string) string {
	const integer = "~int|~int8|~int16|~int32|~int64|~uint|~uint8|~uint16|~uint32|~uint64|~uintptr"
	var out strings.Builder
	fmt.Fprintf(&out, "package %s\n\nimport (\n\t\"cmp\"\n\t\"os\"\n\t\"strconv\"\n)\n\n", pkg)
	fmt.Fprintf(&out, "var mutateNow = func() int { n, _ := strconv.Atoi(os.Getenv(%q)); return n }()\n", variable)
	for op, now := range other {
		of, result := "T "+integer, "T"
		switch op {
		case token.LSS, token.LEQ, token.GTR, token.GEQ:
			of, result = "T cmp.Ordered", "bool"
		case token.ADD, token.SUB, token.MUL, token.QUO:
			of += "|~float32|~float64"
		case token.EQL, token.NEQ, token.LAND, token.LOR:
			continue
		}
		second := "T"
		if op == token.SHL || op == token.SHR {
			of, second = of+", U "+integer, "U"
		}
		fmt.Fprintf(&out, "func %s[%s](n int, x T, y %s) %s {\n\tswitch mutateNow {\n", helper(op), of, second, result)
		for i, instead := range now {
			fmt.Fprintf(&out, "\tcase n + %d:\n\t\treturn x %s y\n", i, instead)
		}
		fmt.Fprintf(&out, "\t}\n\treturn x %s y\n}\n", op)
	}
	return out.String()
}

func helper(op token.Token) string { return fmt.Sprintf("mutate%d", int(op)) }

// change is one that can be made.
type change struct {
	id       int
	at       token.Position
	was, now string
}

// site is a place with its changes, and what is written around it so that each can be made.
type site struct {
	from, to token.Position
	edits    []edit
	changes  []change
	dropped  bool
}

// edit puts text at an offset, in place of what is there up to end. Of those at one offset the lowest order comes first: what begins
// first there ends there last.
type edit struct {
	at, end, order int
	text           string
}

type file struct {
	path  string
	src   []byte
	sites []*site
}

type source struct {
	path, name, dir string
	files           []*file
}

// changes are all that the compiler accepts.
func (s *source) changes() []change {
	var all []change
	for _, f := range s.files {
		for _, t := range f.sites {
			if !t.dropped {
				all = append(all, t.changes...)
			}
		}
	}
	return all
}

// load reads a package with its types and finds all that can be changed in it.
func load(pkg string) (*source, error) {
	out, err := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Name,Dir,Export,GoFiles,DepOnly", pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", pkg, err)
	}
	exports := map[string]string{}
	s := &source{}
	var names []string
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Name, Dir, Export string
			GoFiles                       []string
			DepOnly                       bool
		}
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		if exports[p.ImportPath] = p.Export; !p.DepOnly {
			s.path, s.name, s.dir, names = p.ImportPath, p.Name, p.Dir, p.GoFiles
		}
	}
	set := token.NewFileSet()
	var trees []*ast.File
	for _, name := range names {
		f := &file{path: filepath.Join(s.dir, name)}
		if f.src, err = os.ReadFile(f.path); err != nil {
			return nil, err
		}
		tree, err := parser.ParseFile(set, filepath.Join(pkg, name), f.src, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		s.files, trees = append(s.files, f), append(trees, tree)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	conf := types.Config{Importer: importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	if _, err := conf.Check(s.path, set, trees, info); err != nil {
		return nil, err
	}
	v := &visitor{pkg: s.name, set: set, info: info, heads: map[ast.Node]bool{}}
	for i, f := range s.files {
		v.file = f
		ast.Inspect(trees[i], v.visit)
	}
	return s, nil
}

// visitor finds the sites of a file.
type visitor struct {
	pkg   string
	file  *file
	last  int // number of a change
	set   *token.FileSet
	info  *types.Info
	heads map[ast.Node]bool // statements where only a simple one may stand
}

// add makes a site of n, where [pos, end) may become each of now, and returns the number of the first.
func (v *visitor) add(n ast.Node, pos, end token.Pos, now ...string) (*site, int) {
	first := v.last + 1
	s := &site{from: v.set.Position(n.Pos()), to: v.set.Position(n.End())}
	for _, to := range now {
		v.last++
		s.changes = append(s.changes, change{v.last, v.set.Position(pos), v.text(pos, end), to})
	}
	v.file.sites = append(v.file.sites, s)
	return s, first
}

func (v *visitor) text(from, to token.Pos) string {
	return string(v.file.src[v.offset(from):v.offset(to)])
}
func (v *visitor) offset(p token.Pos) int { return v.set.Position(p).Offset }
func (v *visitor) before(s *site, p token.Pos, text string) {
	s.edits = append(s.edits, edit{v.offset(p), v.offset(p), s.changes[0].id, text})
}
func (v *visitor) after(s *site, p token.Pos, text string) {
	s.edits = append(s.edits, edit{v.offset(p), v.offset(p), -s.changes[0].id, text})
}

func (v *visitor) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok == token.VAR // constants and types are not what tests are for
	case *ast.ForStmt:
		v.heads[n.Init], v.heads[n.Post] = true, true
	case *ast.IfStmt:
		v.heads[n.Init] = true
		switch cond := ast.Unparen(n.Cond).(type) {
		case *ast.BinaryExpr, *ast.UnaryExpr:
		default:
			v.negate(n.Cond, cond.Pos(), cond.End(), "!"+v.text(cond.Pos(), cond.End()))
		}
	case *ast.SwitchStmt:
		v.heads[n.Init] = true
	case *ast.TypeSwitchStmt:
		v.heads[n.Init] = true
	case *ast.BinaryExpr:
		if t := v.info.Types[n]; t.Value == nil {
			v.binary(n, t.Type)
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			v.negate(n, n.OpPos, n.OpPos+1, "")
		}
	case *ast.IncDecStmt:
		now := map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok]
		s, id := v.add(n, n.TokPos, n.End(), now)
		v.before(s, n.Pos(), fmt.Sprintf("func() { if mutateNow == %d { %s%s } else { ", id, v.text(n.X.Pos(), n.X.End()), now))
		v.after(s, n.End(), " } }()")
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE && !slices.ContainsFunc(n.Lhs, blank) {
			v.leave(n)
		}
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); !ok || !ends(call) {
			v.leave(n)
		}
	case *ast.BranchStmt:
		if n.Tok == token.CONTINUE || n.Tok == token.BREAK {
			v.leave(n)
		}
	}
	return true
}

func blank(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "_"
}

// ends says that nothing may follow the call: what takes it away does not compile.
func ends(call *ast.CallExpr) bool {
	id, ok := call.Fun.(*ast.Ident)
	return ok && id.Name == "panic"
}

// leave makes it possible to leave a statement out.
func (v *visitor) leave(n ast.Stmt) {
	s, id := v.add(n, n.Pos(), n.End(), "")
	open, shut := fmt.Sprintf("if mutateNow != %d { ", id), " }"
	if v.heads[n] {
		open, shut = "func() { "+open, shut+" }()"
	}
	v.before(s, n.Pos(), open)
	v.after(s, n.End(), shut)
}

// negate makes it possible to turn a condition round.
func (v *visitor) negate(n ast.Expr, pos, end token.Pos, now string) {
	s, id := v.add(n, pos, end, now)
	v.before(s, n.Pos(), "((")
	v.after(s, n.End(), fmt.Sprintf(") != (mutateNow == %d))", id))
}

func (v *visitor) binary(n *ast.BinaryExpr, t types.Type) {
	if b, ok := t.Underlying().(*types.Basic); len(other[n.Op]) == 0 || ok && b.Info()&types.IsString != 0 {
		return // strings are only put together
	}
	opEnd := n.OpPos + token.Pos(len(n.Op.String()))
	s, id := v.add(n, n.OpPos, opEnd, other[n.Op]...)
	switch now := fmt.Sprintf("(mutateNow == %d)", id); n.Op {
	case token.EQL, token.NEQ:
		v.before(s, n.Pos(), "((")
		v.after(s, n.End(), ") != "+now+")")
	case token.LAND, token.LOR: // x || y is !(!x && !y)
		v.before(s, n.Pos(), "(((")
		v.after(s, n.X.End(), ") != "+now)
		v.before(s, n.Y.Pos(), "((")
		v.after(s, n.Y.End(), ") != "+now+")) != "+now+")")
	default:
		open, shut := "", ""
		if x := v.info.Types[n.X]; x.Value != nil && (n.Op == token.SHL || n.Op == token.SHR) { // takes its type from around it
			open, shut = types.TypeString(t, func(p *types.Package) string { return strings.TrimPrefix(p.Name(), v.pkg) })+"(", ")"
		}
		v.before(s, n.Pos(), helper(n.Op)+"("+strconv.Itoa(id)+", "+open)
		v.after(s, n.X.End(), shut)
		s.edits = append(s.edits, edit{v.offset(n.OpPos), v.offset(opEnd), id, ","})
		v.after(s, n.Y.End(), ")")
	}
}

// schema is the file with all its changes in it, on the lines where they were.
func (f *file) schema() []byte {
	var all []edit
	for _, s := range f.sites {
		if !s.dropped {
			all = append(all, s.edits...)
		}
	}
	slices.SortStableFunc(all, func(a, b edit) int { return cmp.Or(a.at-b.at, a.order-b.order) })
	var out []byte
	at := 0
	for _, e := range all {
		out = append(append(out, f.src[at:e.at]...), e.text...)
		at = e.end
	}
	return append(out, f.src[at:]...)
}

var refused = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):`)

// drop takes out the sites that the compiler's errors are in, the narrowest of each line, and says whether there was one.
func (s *source) drop(errors string) bool {
	dropped := false
	for _, m := range refused.FindAllStringSubmatch(errors, -1) {
		path, _ := filepath.Abs(m[1])
		line, _ := strconv.Atoi(m[2])
		var in []*site
		for _, f := range s.files {
			for _, t := range f.sites {
				if f.path == path && !t.dropped && t.from.Line <= line && line <= t.to.Line {
					in = append(in, t)
				}
			}
		}
		lines := func(t *site) int { return t.to.Line - t.from.Line }
		slices.SortFunc(in, func(a, b *site) int { return lines(a) - lines(b) })
		for _, t := range in {
			if lines(t) == lines(in[0]) {
				t.dropped, dropped = true, true
			}
		}
	}
	return dropped
}
