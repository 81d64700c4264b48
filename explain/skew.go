package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/model"
)

// skews gathers the domains with too many pods for spread constraints, of one
// node or many.
type skews struct {
	of    []ledger.Skew
	known map[skewed]bool
}

type skewed struct {
	constraint int
	domain     string
}

func (s *skews) add(bars []model.Bar) {
	for i := range bars {
		b := &bars[i]
		at := slices.IndexFunc(s.of, func(k ledger.Skew) bool {
			return k.TopologyKey == b.Key && k.Least == b.Least && k.MaxSkew == b.MaxSkew &&
				k.WithNominated == b.Nominated && k.FewDomains == b.FewDomains
		})
		if at < 0 {
			at = len(s.of)
			s.of = append(s.of, ledger.Skew{
				TopologyKey: b.Key, Least: b.Least, MaxSkew: b.MaxSkew, WithNominated: b.Nominated, FewDomains: b.FewDomains,
			})
		}
		k := &s.of[at]
		id := skewed{at, b.Value}
		if s.known[id] {
			continue // another node of the domain told of it
		}
		if s.known == nil {
			s.known = map[skewed]bool{}
		}
		s.known[id] = true
		if k.Total++; len(k.Domains) < maxNamed {
			k.Domains = append(k.Domains, ledger.SkewedDomain{Domain: b.Value, Pods: b.Pods})
		}
	}
}

// words tell a reader of it.
func (s *skews) words() string {
	var parts []string
	for i := range s.of {
		k := &s.of[i]
		var domains []string
		for j, d := range k.Domains {
			name := d.Domain
			if j == 0 {
				name = k.TopologyKey + "=" + d.Domain
			}
			domains = append(domains, fmt.Sprintf("%s has %d", name, d.Pods))
		}
		part := strings.Join(domains, ", ")
		if more := k.Total - len(k.Domains); more > 0 {
			part += fmt.Sprintf(" and %d more such", more)
		}
		if k.WithNominated {
			part += " with nominated pods"
		}
		part += fmt.Sprintf(", at most %d more than the least (%d)", k.MaxSkew, k.Least)
		if k.FewDomains {
			part += " while there are too few domains"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}
