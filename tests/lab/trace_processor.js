// Perfetto's trace processor, as its page runs it in a worker: requests from stdin, replies to stdout.
//
//   node trace_processor.js DIR    with engine_bundle.js and the .wasm beside it
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const directory = process.argv[2];
const say = (text) => process.stderr.write(String(text).slice(0, 400) + '\n');
console.log = console.warn = console.error = say;
process.on('uncaughtException', (error) => {
  say(error.message);
  process.exit(1);
});

// The bundle looks for what a web worker has.
process.type = 'renderer'; // else it takes this for Node, for which it was not built
globalThis.WorkerGlobalScope = function () {};
globalThis.self = globalThis;
globalThis.location = {href: `file://${directory}/engine_bundle.js`};
globalThis.XMLHttpRequest = class {
  open(method, url) {
    this.url = url;
  }
  send() {
    const file = fs.readFileSync(path.join(directory, path.basename(this.url)));
    this.response = file.buffer.slice(file.byteOffset, file.byteOffset + file.length);
    this.status = 200;
  }
};

vm.runInThisContext(fs.readFileSync(path.join(directory, 'engine_bundle.js'), 'utf8'));
const port = {postMessage: (reply) => fs.writeSync(1, reply)};
globalThis.onmessage({data: port});
setImmediate(() => port.onmessage({data: new Uint8Array(fs.readFileSync(0))}));
