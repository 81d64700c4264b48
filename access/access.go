package access

import (
	"iter"
	"slices"
	"strings"
)

// Request is what a caller wants of the API.
type Request struct {
	Verb string
	// Resource is empty for a path. Group is that of the API, "" for the core.
	Group, Resource, Subresource string
	Namespace                    string
	Path                         string
}

// Resource is how the table names a resource.
func Resource(group, resource, subresource string) string {
	if group != "" {
		resource += "." + group
	}
	if subresource != "" {
		resource += "/" + subresource
	}
	return resource
}

// MayAsk says whether a member of the groups may make a request of the API, in a
// cluster that has roles or in one of before there were any.
func MayAsk(groups []string, hasRoles bool, r Request) bool {
	for rule := range rulesFor(groups, hasRoles) {
		if rule.allows(r) {
			return true
		}
	}
	return false
}

// MayCall says whether a member of the groups may call an RPC method.
func MayCall(groups []string, method string) bool {
	for rule := range rulesFor(groups, true) {
		if slices.Contains(rule.Methods, method) {
			return true
		}
	}
	return false
}

// IsAccount: a service account, by its token, which is nobody of
// system:authenticated either: that row is for people, who may make pods.
func IsAccount(groups []string) bool { return slices.Contains(groups, Accounts) }

// home is the namespace of a service account; "" where there is none, or more
// than one.
func home(groups []string) string {
	found := ""
	for _, g := range groups {
		if namespace, ok := strings.CutPrefix(g, Accounts+":"); ok {
			if found != "" {
				return ""
			}
			found = namespace
		}
	}
	return found
}

// IsMachine: a server or a worker, which is nobody of system:authenticated.
func IsMachine(groups []string) bool {
	return slices.Contains(groups, Servers) || slices.Contains(groups, Workers)
}

// RulesFor are the rows that speak of members of the groups.
func RulesFor(groups []string, hasRoles bool) []Rule {
	return slices.Collect(rulesFor(groups, hasRoles))
}

// rulesFor is RulesFor for who asks with every request, and needs to see no more of them
// than the one that allows it.
func rulesFor(groups []string, hasRoles bool) iter.Seq[Rule] {
	machine, account, at := IsMachine(groups), IsAccount(groups), home(groups)
	node := slices.Contains(groups, Nodes)
	return func(yield func(Rule) bool) {
		for _, r := range table {
			switch {
			case r.Before && (hasRoles || node):
				continue
			case r.Group == Everybody:
			case machine && r.Group != Servers && r.Group != Workers, account && r.Group != Accounts,
				r.Home && at == "", !slices.Contains(groups, r.Group):
				continue
			}
			if r.Home {
				r.only = at
			}
			if !yield(r) {
				return
			}
		}
	}
}

// allows asks one row.
func (r *Rule) allows(q Request) bool {
	if !slices.Contains(r.Verbs, q.Verb) && !slices.Contains(r.Verbs, "*") {
		return false
	}
	if slices.Contains(r.Resources, "*") {
		return true
	}
	if q.Resource == "" {
		return slices.ContainsFunc(r.Paths, func(p string) bool { return covers(p, q.Path) })
	}
	if !r.reaches(q.Namespace) {
		return false
	}
	return slices.Contains(r.Resources, Resource(q.Group, q.Resource, q.Subresource)) ||
		q.Subresource != "" && slices.Contains(r.Resources, "*/"+q.Subresource)
}

// reaches: the row counts in the namespace.
func (r *Rule) reaches(namespace string) bool {
	if r.Home {
		return namespace != "" && namespace == r.only
	}
	return !r.OwnNamespaces || !slices.Contains(SystemNamespaces(), namespace)
}

// covers: the pattern is the path, or a beginning of it that ends in a slash.
func covers(pattern, path string) bool {
	if below, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(path, below)
	}
	return pattern == path
}

// ResourcesIn are the row's resources that count in a namespace, by API group.
func (r *Rule) ResourcesIn(namespace string) (groups []string, names [][]string) {
	if !r.reaches(namespace) {
		return nil, nil
	}
	return r.Everywhere()
}

// Everywhere are the row's resources, by API group, in whatever namespace they count.
func (r *Rule) Everywhere() (groups []string, names [][]string) {
	for _, full := range r.Resources {
		resource, sub, isPart := strings.Cut(full, "/")
		resource, group, _ := strings.Cut(resource, ".")
		if isPart {
			resource += "/" + sub
		}
		if full == "*" || strings.HasPrefix(full, "*/") {
			group = "*"
		}
		i := slices.Index(groups, group)
		if i < 0 {
			i, groups, names = len(groups), append(groups, group), append(names, nil)
		}
		names[i] = append(names[i], resource)
	}
	return groups, names
}
