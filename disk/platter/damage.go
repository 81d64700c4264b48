package platter

import "fmt"

// RemoveAll takes a file or a directory away, with all that is in it.
func (p *Platter) RemoveAll(path ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dir := p.root
	for _, name := range path[:len(path)-1] {
		if dir = dir.names[name]; dir == nil {
			return
		}
	}
	delete(dir.names, path[len(path)-1])
	delete(dir.kept, path[len(path)-1])
}

// Rot flips a bit of a file, and says of which.
func (p *Platter) Rot() (path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	files, paths := []*inode{}, []string{}
	var walk func(at string, n *inode)
	walk = func(at string, n *inode) {
		for _, name := range sorted(n.names) {
			if child := n.names[name]; child.dir {
				walk(at+"/"+name, child)
			} else if child.synced.size > 0 && child.synced.size == child.seen.size {
				files, paths = append(files, child), append(paths, at+"/"+name)
			}
		}
	}
	walk("", p.root)
	if len(files) == 0 {
		return ""
	}
	i := p.rand.IntN(len(files))
	at, bit := p.rand.Int64N(files[i].seen.size), byte(1)<<p.rand.IntN(8)
	for _, c := range []*content{&files[i].seen, &files[i].synced} {
		one := make([]byte, 1)
		c.read(one, at)
		c.overwrite(at, []byte{one[0] ^ bit})
	}
	return fmt.Sprintf("%s, byte %d", paths[i], at)
}
