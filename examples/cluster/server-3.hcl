# See server-1.hcl.

name      = "server-3"
data_dir  = "/var/lib/berth"
bind_addr = "10.0.0.3"
join      = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]

server {
  enabled          = true
  bootstrap_expect = 3
}

gossip {
  encryption_key = "make one with: berth operator gossip-key"
}

tls {
  ca_file   = "/etc/berth/tls/ca.pem"
  cert_file = "/etc/berth/tls/server-server-3.pem"
  key_file  = "/etc/berth/tls/server-server-3-key.pem"
}
