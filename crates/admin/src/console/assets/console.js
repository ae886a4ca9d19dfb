// Keeps regions of a page fresh. An event names what has changed; the page is loaded, and those regions are replaced.
'use strict';
(() => {
  const regions = () => [...document.querySelectorAll('[data-live]')];
  const notice = document.getElementById('live');
  const over = document.getElementById('over');
  const news = document.getElementById('new');
  let source, again, late, pause;
  let next = 0;
  let isBehind = false;
  let isOver = false;
  let isLoading = false;
  let changed = new Set();

  // A region in use stays as it is.
  const isUsed = (region) => {
    const selection = document.getSelection();
    const isSelected = selection && !selection.isCollapsed && selection.containsNode(region, true);
    return isSelected || region.contains(document.activeElement) || region.querySelector('details[open]');
  };

  const show = (isLive) => {
    if (isLive) late = clearTimeout(late);
    notice.hidden = isLive || isOver;
    over.hidden = !isOver;
    for (const region of regions()) region.classList.toggle('old', !isLive);
  };

  // Rows do not move: new ones are counted above them.
  const count = (page) => {
    const rows = (from) => [...from.querySelectorAll('[data-row]')].map((row) => row.dataset.row);
    const known = new Set(rows(document));
    const fresh = rows(page).filter((row) => !known.has(row)).length;
    news.hidden = !fresh;
    news.querySelector('strong').textContent = fresh;
  };

  const replace = (page, names) => {
    if (news && names.has(news.dataset.rows)) count(page);
    for (const region of regions()) {
      const name = region.dataset.live;
      const fresh = names.has(name) && page.querySelector(`[data-live="${name}"]`);
      if (!fresh || fresh.innerHTML === region.innerHTML) continue;
      if (isUsed(region)) changed.add(name);
      else region.replaceWith(document.importNode(fresh, true));
    }
  };

  const load = () => {
    if (isLoading || !changed.size || document.hidden) return;
    clearTimeout(pause);
    const wait = next - Date.now();
    if (wait > 0) return (pause = setTimeout(load, wait));
    // A list is looked up in stores.
    if (news) next = Date.now() + 30000;
    isLoading = true;
    const names = changed;
    changed = new Set();
    const request = new XMLHttpRequest();
    request.open('GET', location.href);
    request.responseType = 'document';
    request.timeout = 5000;
    request.setRequestHeader('oncegate-live', '1');
    request.onloadend = () => {
      isLoading = false;
      const isOk = request.status === 200 && request.response;
      if (isOk) replace(request.response, names);
      show(isOk && source.readyState === EventSource.OPEN);
    };
    request.send();
  };

  const open = () => {
    clearTimeout(again);
    if (isOver) return;
    source = new EventSource('/console/live');
    source.onopen = () => {
      show(true);
      // Anything may have changed.
      if (isBehind) changed = new Set([...regions().map((region) => region.dataset.live), news?.dataset.rows]);
      isBehind = false;
      load();
    };
    source.onmessage = (event) => {
      if (event.data === 'ended') return end();
      for (const name of event.data.split(' ')) changed.add(name);
      load();
    };
    source.onerror = () => {
      isBehind = true;
      if (source.readyState !== EventSource.CLOSED) return (late ??= setTimeout(show, 10000, false));
      // Too many are open. Those of left pages end soon.
      show(false);
      again = setTimeout(open, 5000);
    };
  };

  const close = () => {
    clearTimeout(again);
    isBehind = true;
    source.close();
  };

  // The forms of the page belong to its session: only a sign-in helps.
  const end = () => {
    close();
    isOver = true;
    show(false);
  };

  document.addEventListener('keydown', (event) => {
    const isTyping = event.target.closest('input, textarea, select');
    if (event.key === '/' && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const box = document.getElementById('find');
      if (!box) return;
      event.preventDefault();
      box.focus();
    }
  });
  if (!(news || regions().length) || !window.EventSource) return;
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) close();
    else open();
  });
  addEventListener('pagehide', close);
  addEventListener('pageshow', (event) => event.persisted && open());
  open();
})();
