package stock

import "strconv"

// wholeOptimizers makes the states of optimizers in v as torch.distributed.checkpoint would have them: of ZeRO-1 by number of the parameter
// in the whole optimizer, and by the parameter's name where the optimizer knows names. It follows holdfast._union.
func wholeOptimizers(v *node) error {
	left := int64(maxNodes)
	return wholeOptimizersOf(v, &left)
}

// wholeOptimizersOf makes at most so many numbers as are left.
func wholeOptimizersOf(v *node, left *int64) error {
	if v.kind != list && !v.isDict() {
		return nil
	}
	if v.kind == dict && isZero(v) {
		whole, err := wholeOfZero(v, left)
		if err != nil {
			return err
		}
		*v = whole
	}
	if v.isDict() {
		state, groups := v.get("state"), v.get("param_groups")
		if state != nil && state.isDict() && groups != nil && groups.kind == list {
			return byName(state, groups)
		}
	}
	for i := range v.kids {
		if v.isDict() && i%2 == 0 {
			continue // a key
		}
		if err := wholeOptimizersOf(&v.kids[i], left); err != nil {
			return err
		}
	}
	return nil
}

func isZero(v *node) bool {
	return len(v.kids) == 8 && v.get("optim") != nil && v.get("groups") != nil && v.get("part") != nil && v.get("of") != nil
}

// wholeOfZero is holdfast._kinds.whole_of_zero.
func wholeOfZero(v *node, left *int64) (node, error) {
	bad := notNamed("the state of a ZeroRedundancyOptimizer is not known here")
	optim, groups, of := v.get("optim"), v.get("groups"), v.get("of")
	state, mine := optim.get("state"), optim.get("param_groups")
	if state == nil || !state.isDict() || mine == nil || mine.kind != list || groups.kind != list || of.kind != list {
		return node{}, bad
	}
	number := map[string]string{}
	whole := node{kind: list}
	first := int64(0)
	for i := range min(len(mine.kids), len(groups.kids), len(of.kids)) {
		params, place, group := mine.kids[i].get("params"), &of.kids[i], groups.kids[i]
		if params == nil || params.kind != list || place.kind != list || len(place.kids) != 2 || !group.isDict() {
			return node{}, bad
		}
		count, ok := place.kids[0].int64()
		numbers, are := place.kids[1].numbers()
		if !ok || !are || count > *left {
			return node{}, bad
		}
		*left -= count
		for k := range min(len(numbers), len(params.kids)) {
			number[params.kids[k].s] = strconv.FormatInt(numbers[k], 10)
		}
		all := node{kind: list}
		for k := range count {
			all.kids = append(all.kids, node{kind: integer, s: strconv.FormatInt(first+k, 10)})
		}
		first += count
		whole.kids = append(whole.kids, group.with("params", all))
	}
	kept := node{kind: dict}
	for i := 0; i+1 < len(state.kids); i += 2 {
		to, ok := number[state.kids[i].s]
		if !ok || state.kids[i].kind != integer {
			return node{}, bad
		}
		kept.kids = append(kept.kids, node{kind: integer, s: to}, state.kids[i+1])
	}
	return node{kind: dict, kids: []node{{kind: text, s: "state"}, kept, {kind: text, s: "param_groups"}, whole}}, nil
}

// with is the dict with another value of a key.
func (v node) with(key string, x node) node {
	v.kids = append([]node(nil), v.kids...)
	if was := v.get(key); was != nil {
		*was = x
	} else {
		v.kids = append(v.kids, node{kind: text, s: key}, x)
	}
	return v
}

// byName gives an optimizer's state and groups the names of the parameters, where there are as many, and no two alike.
func byName(state, groups *node) error {
	var names, numbers []*node
	called := map[string]string{}
	for i := range groups.kids {
		g := &groups.kids[i]
		params := g.get("params")
		if !g.isDict() || params == nil || params.kind != list {
			return notNamed("an optimizer's param_groups are not known here")
		}
		for k := range params.kids {
			numbers = append(numbers, &params.kids[k])
		}
		if of := g.get("param_names"); of != nil && of.kind == list {
			for k := range of.kids {
				names = append(names, &of.kids[k])
			}
		}
	}
	seen := map[string]bool{}
	for _, n := range names {
		if n.kind != text {
			return notNamed("an optimizer's param_names are not known here")
		}
		seen[n.s] = true
	}
	if len(names) == 0 || len(seen) != len(names) || len(names) != len(numbers) {
		return nil
	}
	for i, n := range numbers {
		if n.kind != integer {
			return notNamed("an optimizer's params are no numbers")
		}
		called[n.s] = names[i].s
	}
	for i := 0; i+1 < len(state.kids); i += 2 {
		name, ok := called[state.kids[i].s]
		if !ok || state.kids[i].kind != integer {
			return notNamed("an optimizer has state of a parameter that is in none of its param_groups")
		}
		state.kids[i] = node{kind: text, s: name}
	}
	for _, n := range numbers {
		*n = node{kind: text, s: called[n.s]}
	}
	return nil
}
