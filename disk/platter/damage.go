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
			} else if len(child.synced) > 0 && len(child.synced) == len(child.bytes) {
				files, paths = append(files, child), append(paths, at+"/"+name)
			}
		}
	}
	walk("", p.root)
	if len(files) == 0 {
		return ""
	}
	i := p.rand.IntN(len(files))
	at, bit := p.rand.IntN(len(files[i].bytes)), byte(1)<<p.rand.IntN(8)
	files[i].bytes[at] ^= bit
	files[i].synced[at] ^= bit
	return fmt.Sprintf("%s, byte %d", paths[i], at)
}
