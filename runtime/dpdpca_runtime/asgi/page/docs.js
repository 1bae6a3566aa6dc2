"use strict";

function row(body, method, path, operation) {
  const line = body.insertRow();
  const verb = line.insertCell();
  verb.textContent = method.toUpperCase();
  verb.className = "method";
  const code = document.createElement("code");
  const query = (operation.parameters || []).filter((p) => p.in === "query").map((p) => `${p.name}=…`).join("&");
  code.textContent = query ? `${path}?${query}` : path;
  line.insertCell().append(code);
  line.insertCell().textContent = operation.summary || "";
  line.insertCell().textContent = operation.requestBody ? operation.requestBody.description : "";
}

fetch("/openapi.json").then((answer) => answer.json()).then((described) => {
  document.title = `${described.info.title}: routes`;
  document.getElementById("title").textContent = document.title;
  document.getElementById("description").textContent = described.info.description || "";
  const tables = new Map();
  const place = document.getElementById("routes");
  for (const [path, operations] of Object.entries(described.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const tag = (operation.tags || ["other"])[0];
      if (!tables.has(tag)) {
        const heading = document.createElement("h2");
        heading.textContent = tag;
        const table = document.createElement("table");
        table.insertRow().innerHTML = "<th>Method<th>Path<th>Purpose<th>Body";
        place.append(heading, table);
        tables.set(tag, table.createTBody());
      }
      row(tables.get(tag), method, path, operation);
    }
  }
});
