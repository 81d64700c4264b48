package explain

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/sched"
)

// maxNamed is how many of the pods in the way are named for one reason and
// topology key, or domains told of for one spread constraint. The others are
// counted.
const maxNamed = 3

// blockers gathers who is in the way for one reason, of one node or many.
type blockers struct {
	reason string
	keys   []*keyed
}

// keyed are those whose rules go by one topology key; without a key, those for
// whom a node keeps its room.
type keyed struct {
	topologyKey string
	shared      bool // some domain has several nodes
	seen        map[*sched.Blockers]bool
	groups      []*sched.Blockers
}

func (r *blockers) add(groups []*sched.Blockers) {
	for _, c := range groups {
		i := slices.IndexFunc(r.keys, func(k *keyed) bool { return k.topologyKey == c.Key })
		if i < 0 {
			i = len(r.keys)
			r.keys = append(r.keys, &keyed{topologyKey: c.Key, seen: map[*sched.Blockers]bool{}})
		}
		k := r.keys[i]
		if !k.seen[c] {
			k.seen[c] = true
			k.groups = append(k.groups, c)
			k.shared = k.shared || c.Shared
		}
	}
}

// kept: the nodes would have what is missing, and keep it for others. Otherwise
// those who are in the way are what a node's detail counts.
func (r *blockers) kept() bool { return r.keys[0].topologyKey == "" }

// naming tells who is in the way of one pod, as the asker may see it (PR20).
// Nodes of one domain are kept from it by the same pods, so what was found for
// some is kept for the others.
type naming struct {
	q       *question
	numbers map[*sched.Blockers]uint64
	known   map[string]*named
}

type named struct {
	pods  []ledger.PodInTheWay
	total int
}

func newNaming(q *question) *naming {
	return &naming{q: q, numbers: map[*sched.Blockers]uint64{}, known: map[string]*named{}}
}

// told is what they come to: fields for a program, and words for a reader.
func (n *naming) told(r *blockers) (fields []ledger.InTheWay, words string) {
	var parts []string
	for _, k := range r.keys {
		all := n.union(k.groups)
		fields = append(fields, ledger.InTheWay{
			Reason: r.reason, TopologyKey: k.topologyKey, Pods: all.pods, Total: all.total,
		})
		names := make([]string, len(all.pods))
		for i := range all.pods {
			names[i] = n.word(&all.pods[i], k.topologyKey)
		}
		part := strings.Join(names, ", ")
		if k.topologyKey == "" {
			part = "kept for " + part
		}
		if more := all.total - len(all.pods); more > 0 {
			part += fmt.Sprintf(" and %d more", more)
		}
		if k.shared {
			part += " in the same " + k.topologyKey
		}
		parts = append(parts, part)
	}
	return fields, strings.Join(parts, "; ")
}

// union is who is in any of the groups, each pod once.
func (n *naming) union(groups []*sched.Blockers) *named {
	var id []byte
	for _, c := range groups {
		number, ok := n.numbers[c]
		if !ok {
			number = uint64(len(n.numbers))
			n.numbers[c] = number
		}
		id = binary.AppendUvarint(id, number)
	}
	if all, ok := n.known[string(id)]; ok {
		return all
	}
	type standing struct {
		pod    *sched.Blocker
		domain string
	}
	var first []standing
	seen := map[types.UID]bool{}
	for _, c := range groups {
		for i := range c.Pods {
			p := &c.Pods[i]
			if seen[p.UID] {
				continue
			}
			seen[p.UID] = true
			at := len(first)
			for at > 0 && p.Before(first[at-1].pod) < 0 {
				at--
			}
			if at < maxNamed {
				first = slices.Insert(first, at, standing{p, c.Value})
				first = first[:min(len(first), maxNamed)]
			}
		}
	}
	all := &named{total: len(seen)}
	for _, s := range first {
		shown := ledger.PodInTheWay{
			UID: s.pod.UID, Node: s.pod.Node, Domain: s.domain, Nominated: s.pod.Nominated, Ending: s.pod.Ending,
		}
		if ns, name, _ := strings.Cut(s.pod.Key, "/"); n.q.mayRead(ns) {
			shown.Namespace, shown.Name = ns, name
		}
		all.pods = append(all.pods, shown)
	}
	n.known[string(id)] = all
	return all
}

// word is a pod in a reason: its name, with its namespace where that is
// another one than the asked pod's, and what there is of it.
func (n *naming) word(p *ledger.PodInTheWay, topologyKey string) string {
	s := p.Name
	switch {
	case p.Name == "":
		s = "pod " + string(p.UID)
	case p.Namespace != n.q.Namespace:
		s = p.Namespace + "/" + p.Name
	}
	switch {
	case topologyKey == "":
		return s + " on " + p.Node
	case p.Nominated:
		return "nominated " + s
	case p.Ending:
		return "ending " + s
	}
	return s
}
