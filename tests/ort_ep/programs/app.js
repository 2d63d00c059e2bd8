const ort = require('onnxruntime-node');
const fs = require('fs');
(async () => {
  const [model, input, output, file, result, dims] = process.argv.slice(2);
  const session = await ort.InferenceSession.create(model);
  const data = fs.readFileSync(file);
  const values = new Float32Array(data.buffer, data.byteOffset, data.length / 4);
  const fed = { [input]: new ort.Tensor('float32', values, dims.split(',').map(Number)) };
  const found = (await session.run(fed))[output].data;
  fs.writeFileSync(result, Buffer.from(found.buffer, found.byteOffset, found.byteLength));
})().catch((error) => { console.error(error.message); process.exit(1); });
