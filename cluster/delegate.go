package cluster

import (
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
)

// forgetAfter is how long a member that is gone stays listed: an operator looks
// for it, and the reconnect loop tries it, for that long.
const forgetAfter = 24 * time.Hour

const (
	// maxMembers bounds the members that are listed: whoever has the gossip's key can name as many as it likes. Of those that are gone the
	// older half makes room.
	maxMembers = 32 << 10
	// maxNameBytes bounds a member's name.
	maxNameBytes = 256
)

// delegate is the Pool as memberlist sees it. Its methods run under
// memberlist's lock: they must not call memberlist nor wait.
type delegate struct{ p *Pool }

var (
	_ memberlist.Delegate         = delegate{}
	_ memberlist.EventDelegate    = delegate{}
	_ memberlist.ConflictDelegate = delegate{}
	_ memberlist.MergeDelegate    = delegate{}
	_ memberlist.AliveDelegate    = delegate{}
)

func (d delegate) NodeMeta(int) []byte {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	return d.p.rawMeta
}

func (d delegate) NotifyJoin(n *memberlist.Node)   { d.p.seen(n, EventJoin) }
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.p.seen(n, EventUpdate) }

func (d delegate) NotifyLeave(n *memberlist.Node) {
	p := d.p
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.members[n.Name]
	if !ok {
		return
	}
	kind := EventFail
	m.Status, m.Since = StatusFailed, time.Now()
	if m.Leaving || n.Name == p.name {
		kind, m.Status = EventLeave, StatusLeft
	}
	p.put(n.Name, &m)
	p.emit(Event{Kind: kind, Member: m})
}

// NotifyAlive refuses what is not of this cluster, before it is a member.
func (d delegate) NotifyAlive(n *memberlist.Node) error {
	if n.Name == d.p.name {
		return nil // NotifyConflict judges a namesake
	}
	if len(n.Name) > maxNameBytes {
		return fmt.Errorf("a member's name has %d bytes, more than %d", len(n.Name), maxNameBytes)
	}
	meta, err := decodeMeta(n.Meta)
	if err != nil {
		return err
	}
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	if _, known := d.p.members[n.Name]; !known && !d.p.hasRoom() {
		return fmt.Errorf("there are %d members, and there may be no more: %.40q is not taken", len(d.p.members), n.Name)
	}
	return d.p.checkCluster(n.Name, nodeAddr(n), meta)
}

// hasRoom says whether there may be one more member, and forgets some that are gone where there may not. It wants p.mu held.
func (p *Pool) hasRoom() bool {
	if len(p.members) < maxMembers {
		return true
	}
	if p.gone == 0 {
		return false
	}
	var gone []Member
	for _, m := range p.members {
		if m.Status != StatusAlive {
			gone = append(gone, m)
		}
	}
	slices.SortFunc(gone, func(a, b Member) int { return a.Since.Compare(b.Since) })
	for _, m := range gone[:(len(gone)+1)/2] {
		p.put(m.Name, nil)
	}
	return len(p.members) < maxMembers
}

// put makes a member what it is now; nil: it is not listed any more. It wants p.mu held.
func (p *Pool) put(name string, m *Member) {
	if old, ok := p.members[name]; ok && old.Status != StatusAlive {
		p.gone--
	}
	if m == nil {
		delete(p.members, name)
		return
	}
	if m.Status != StatusAlive {
		p.gone++
	}
	p.members[name] = *m
}

// NotifyMerge judges a pool before it is joined. memberlist keeps only the
// error's text, so Join finds the error itself in p.refused.
func (d delegate) NotifyMerge(nodes []*memberlist.Node) error {
	p := d.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range nodes {
		if n.State != memberlist.StateAlive && n.State != memberlist.StateSuspect {
			continue
		}
		if n.Name == p.name {
			if addr := nodeAddr(n); addr != p.addr && p.addr != "" {
				p.refused = &NameTakenError{Name: p.name, Addr: addr}
				return p.refused
			}
			continue
		}
		meta, err := decodeMeta(n.Meta)
		if err == nil {
			err = p.checkCluster(n.Name, nodeAddr(n), meta)
		}
		if err != nil {
			p.refused = err
			return err
		}
	}
	return nil
}

func (d delegate) NotifyConflict(existing, other *memberlist.Node) {
	p := d.p
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.members[existing.Name]
	if !ok {
		return
	}
	p.emit(Event{Kind: EventConflict, Member: m, Other: nodeAddr(other)})
	// The same conflict is heard at every exchange: said once for an address.
	if key := existing.Name + " " + nodeAddr(other); p.lastConflict != key {
		p.lastConflict = key
		p.log.Error("two members have one name; the newcomer is ignored", "name", existing.Name, "address", nodeAddr(existing), "newcomer", nodeAddr(other))
	}
}

// checkCluster wants p.mu held.
func (p *Pool) checkCluster(name, addr string, m Meta) error {
	if p.meta.ClusterID != "" && m.ClusterID != "" && p.meta.ClusterID != m.ClusterID {
		return &OtherClusterError{Name: name, Addr: addr, Theirs: m.ClusterID, Ours: p.meta.ClusterID}
	}
	return nil
}

// seen takes a live member over.
func (p *Pool) seen(n *memberlist.Node, kind EventKind) {
	meta, err := decodeMeta(n.Meta)
	if err != nil {
		// NotifyAlive has refused it; only our own can come here.
		p.log.Error("ignoring a member", "name", n.Name, "error", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	m := Member{Name: n.Name, Addr: nodeAddr(n), Status: StatusAlive, Since: now, Meta: meta}
	if old, ok := p.members[n.Name]; ok && old.Status == StatusAlive {
		m.Since = old.Since
		m.Leaving = old.Leaving && old.Instance == m.Instance
	}
	p.put(n.Name, &m)
	p.emit(Event{Kind: kind, Member: m})
	if kind == EventJoin {
		p.forget(now)
	}
}

// forget drops members that are long gone, at most once a minute: it walks all.
func (p *Pool) forget(now time.Time) {
	if now.Sub(p.forgotten) < time.Minute {
		return
	}
	p.forgotten = now
	for name, m := range p.members {
		if m.Status != StatusAlive && now.Sub(m.Since) > forgetAfter {
			p.put(name, nil)
		}
	}
}

// emit wants p.mu held.
func (p *Pool) emit(e Event) {
	for s := range p.subs {
		s.push(e)
	}
}
